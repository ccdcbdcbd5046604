#include "apps/cli/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/terminal.h"
#include "base/json.h"

namespace quantspec::cli {

namespace {

using Json = nlohmann::ordered_json;

// All that the cache holds: pages and ring.
std::size_t cache_bytes(const Run& run) {
  const MemoryPlan& memory = run.result.memory;
  return memory.kv_bytes + memory.ring_bytes;
}

std::string describe_end(const GenerateResult& result) {
  switch (result.stop_reason) {
    case StopReason::kEos:
      return "the model ended the text";
    case StopReason::kStop:
      return "a stop text came";
    case StopReason::kLength:
      return "as many tokens as were asked for";
    case StopReason::kContext:
      return "the context is full (--ctx-size)";
    case StopReason::kCancelled:
      break;
  }
  return "interrupted";
}

std::string acceptance(const RoundStats& stats) {
  if (stats.drafted == 0) return "-";
  return fmt::format("{:.1f}% ({}/{})", 100 * stats.acceptance_rate(), stats.accepted,
                     stats.drafted);
}

std::string row(std::string_view label, std::string_view plain, std::string_view speculative) {
  return fmt::format("{:20} {:>16} {:>20}\n", label, plain, speculative);
}

std::string verdict(const Comparison& comparison) {
  if (!comparison.comparable) {
    return "not comparable (rejection sampling keeps the\n"
           "  distribution, not the tokens; --spec-sampling coupled does)";
  }
  if (comparison.identical()) return "yes";
  return fmt::format("no, from token {} on", *comparison.differs_from);
}

}  // namespace

Comparison::Comparison(const Run& speculative, const Run& plain, bool comparable)
    : comparable(comparable) {
  const auto& a = speculative.result.tokens;
  const auto& b = plain.result.tokens;
  const auto [at, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (a != b) differs_from = at - a.begin();
}

double speed_up(const Run& speculative, const Run& plain) {
  const double base = plain.result.timings.decode_tokens_per_second;
  return base > 0 ? speculative.result.timings.decode_tokens_per_second / base : 0.0;
}

std::string megabytes(std::size_t bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); }

Json to_json(const Run& run) {
  const GenerateResult& result = run.result;
  const Timings& timings = result.timings;
  const RoundStats& stats = result.speculation;
  const MemoryPlan& memory = result.memory;
  return {{"text", result.text},
          {"tokens", result.tokens},
          {"prompt_tokens", result.prompt_tokens},
          {"cached_tokens", result.cached_tokens},
          {"predicted_tokens", result.tokens.size()},
          {"stop_reason", name_of(result.stop_reason)},
          {"seed", run.sampling.params.seed},
          {"sampling", to_json(run.sampling)},
          {"backend", run.backend},
          {"timings",
           {{"load_ms", run.load_ms},
            {"prefill_ms", timings.prefill_ms},
            {"decode_ms", timings.decode_ms},
            {"prefill_tokens_per_second", timings.prefill_tokens_per_second},
            {"decode_tokens_per_second", timings.decode_tokens_per_second}}},
          {"speculation",
           {{"rounds", stats.rounds},
            {"draft_n", stats.drafted},
            {"draft_n_accepted", stats.accepted},
            {"lookup_n", stats.looked_up},
            {"lookup_n_accepted", stats.looked_up_accepted},
            {"acceptance_rate", stats.acceptance_rate()},
            {"acceptance_per_token", stats.acceptance_per_token()},
            {"tokens_per_round", stats.tokens_per_round()},
            {"draft_len_mean", stats.draft_len_mean()},
            {"accepted_per_position", stats.accepted_per_position()},
            {"draft_choice", result.draft_choice}}},
          {"memory",
           {{"weights_bytes", memory.weights_bytes},
            {"draft_weights_bytes", memory.draft_weights_bytes},
            {"kv_bytes", memory.kv_bytes},
            {"ring_bytes", memory.ring_bytes},
            {"kv_fp16_bytes", memory.kv_fp16_bytes},
            {"peak_rss_bytes", run.peak_rss_bytes}}}};
}

Json to_json(const Run& run, const Run& baseline, const Comparison& comparison) {
  Json json = to_json(run);
  json["baseline"] = to_json(baseline);
  json["speedup"] = speed_up(run, baseline);
  json["identical"] = comparison.comparable ? Json(comparison.identical()) : Json(nullptr);
  return json;
}

std::string summary(const Run& run) {
  const GenerateResult& result = run.result;
  const Timings& timings = result.timings;
  const RoundStats& stats = result.speculation;
  std::string text = fmt::format(
      "\nprefill  {} tokens{} in {:.2f} s, {:.1f} tokens/s\n"
      "decode   {} tokens after the first in {:.2f} s, {:.1f} tokens/s\n",
      result.prompt_tokens,
      result.cached_tokens > 0 ? fmt::format(", {} of them found,", result.cached_tokens) : "",
      timings.prefill_ms / 1e3, timings.prefill_tokens_per_second, result.tokens.size() - 1,
      timings.decode_ms / 1e3, timings.decode_tokens_per_second);
  if (stats.drafted > 0) {
    text += fmt::format("drafts   {} accepted, {:.2f} tokens per round, mean length {:.1f}\n",
                        acceptance(stats), stats.tokens_per_round(), stats.draft_len_mean());
    if (stats.looked_up > 0) {
      text += fmt::format("         of those looked up in the text: {} of {}\n",
                          stats.looked_up_accepted, stats.looked_up);
    }
  } else {
    text += "drafts   none\n";
  }
  if (result.drafts_off)
    text += "         switched off for now: drafting did not pay (-v says why)\n";
  text += result.memory.kv_bytes == 0
              ? fmt::format("memory   KV cache {}, nothing of it quantized\n",
                            megabytes(cache_bytes(run)))
              : fmt::format("memory   KV cache {}; in fp16 it would take {}\n",
                            megabytes(cache_bytes(run)), megabytes(result.memory.kv_fp16_bytes));
  text += fmt::format("end      {}\n", describe_end(result));
  return text;
}

std::string table(const Run& run, const Run& baseline, const Comparison& comparison) {
  const auto each = [&](std::string_view label, auto value) {
    return row(label, value(baseline), value(run));
  };
  const auto number = [](double value) { return fmt::format("{:.2f}", value); };
  const auto speed = [](double value) { return fmt::format("{:.1f}", value); };
  std::string text =
      fmt::format("\n{} tokens of prompt, {} written; end: {}\n\n", run.result.prompt_tokens,
                  run.result.tokens.size(), describe_end(run.result));
  text += row("", "plain", "self-speculative");
  text += each("prefill tokens/s",
               [&](const Run& r) { return speed(r.result.timings.prefill_tokens_per_second); });
  text += each("decode tokens/s",
               [&](const Run& r) { return speed(r.result.timings.decode_tokens_per_second); });
  text += row("speed-up", "1.00x", fmt::format("{:.2f}x", speed_up(run, baseline)));
  text += each("acceptance", [](const Run& r) { return acceptance(r.result.speculation); });
  text += each("of it looked up", [](const Run& r) {
    const RoundStats& stats = r.result.speculation;
    return stats.looked_up == 0 ? std::string("-")
                                : fmt::format("{}/{}", stats.looked_up_accepted, stats.looked_up);
  });
  text += each("tokens per round",
               [&](const Run& r) { return number(r.result.speculation.tokens_per_round()); });
  text += each("mean draft length",
               [&](const Run& r) { return number(r.result.speculation.draft_len_mean()); });
  text += each("KV cache", [](const Run& r) { return megabytes(cache_bytes(r)); });
  text += each("KV cache in fp16",
               [](const Run& r) { return megabytes(r.result.memory.kv_fp16_bytes); });
  return text + fmt::format("identical output: {}\n", verdict(comparison));
}

std::string legend(bool color) {
  const char* const reset = color ? kReset : "";
  return fmt::format(
      "colour   {}green{}: drafted and accepted; {}cyan{}: looked up; plain: the target's\n",
      color ? kTint : "", reset, color ? kFoundTint : "", reset);
}

}  // namespace quantspec::cli
