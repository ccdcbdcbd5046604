// quantspec info
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli/flags.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "base/json.h"
#include "base/shown.h"
#include "engine/engine.h"
#include "model/model_files.h"

namespace quantspec::cli {

namespace {

using Json = nlohmann::ordered_json;

// Steps of four up to what the model was made for, and the length that was asked for.
std::vector<int> context_lengths(int max_positions, int wanted) {
  std::vector<int> lengths = {max_positions};
  for (std::int64_t length = 2048; length < max_positions; length *= 4) {
    lengths.push_back(static_cast<int>(length));
  }
  if (wanted > 0) lengths.push_back(wanted);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

std::string_view name_of_rope(RopeConfig::Type type) {
  switch (type) {
    case RopeConfig::Type::kDefault:
      return "default";
    case RopeConfig::Type::kLinear:
      return "linear";
    case RopeConfig::Type::kDynamic:
      return "dynamic";
    case RopeConfig::Type::kLlama3:
      return "llama3";
    case RopeConfig::Type::kYarn:
      return "yarn";
    case RopeConfig::Type::kLongrope:
      break;
  }
  return "longrope";
}

std::string yes_no(bool value) { return value ? "yes" : "no"; }

// How many of them can have a part of the model each.
std::string ranks_in_words(const ModelReport& report) {
  const auto counts = fmt::format("{}", fmt::join(report.rank_counts, " or "));
  if (report.context_ranks > 1) {
    return fmt::format("{} can share this model if {} of them share each context", counts,
                       report.context_ranks);
  }
  if (report.rank_counts.size() > 1) return counts + " can share this model";
  return "several can share this model only with --context-ranks";
}

std::string architecture(const std::string& model, const ModelReport& report) {
  const ModelConfig& config = report.config;
  std::string text = fmt::format("model        {}\n", one_line(model));
  text += fmt::format("family       {}, weights in {}\n", config.family, report.target_weights);
  text += fmt::format("layers       {} of {} channels, MLP {}\n", config.num_layers,
                      config.hidden_size, config.intermediate_size);
  text += fmt::format("attention    {} query heads and {} KV heads of {} channels\n",
                      config.num_heads, config.num_kv_heads, config.head_dim);
  text += fmt::format("             biases: qkv {}, output {}; query and key norms: {}\n",
                      yes_no(config.qkv_bias), yes_no(config.output_bias), yes_no(config.qk_norm));
  text += fmt::format("vocabulary   {} tokens, head tied to the embedding: {}\n", config.vocab_size,
                      yes_no(config.tied_head));
  text += fmt::format("positions    {}, RoPE {} with theta {:g}\n", config.max_positions,
                      name_of_rope(config.rope.type), config.rope.theta);
  text += fmt::format("KV cache     pages of {} tokens\n", report.page_size);
  text += fmt::format("backend      {}\n", report.backend);
  text += fmt::format("ranks        {}\n", ranks_in_words(report));
  if (!report.unread_tensors.empty()) {
    text += fmt::format("not used     {} tensors of the checkpoint, such as {}\n",
                        report.unread_tensors.size(), shown(report.unread_tensors.front()));
  }
  return text;
}

std::string plan_row(int context, const MemoryPlan& plan, bool fits) {
  const auto mb = [](std::size_t bytes) { return static_cast<double>(bytes) / 1e6; };
  return fmt::format("{:9} {:8.1f} {:8.1f} {:8.1f} {:7.1f} {:8.1f} {:9.1f} {:9.1f}{}\n", context,
                     mb(plan.weights_bytes), mb(plan.draft_weights_bytes), mb(plan.kv_bytes),
                     mb(plan.ring_bytes), mb(plan.prefill_bytes), mb(plan.total()),
                     mb(plan.kv_fp16_bytes), fits ? "" : " *");
}

std::string memory_plan(const ModelReport& report) {
  std::string text = "\nmemory plan, in MB, by tokens of context\n";
  if (report.ranks > 1) {
    const std::string share =
        report.context_ranks == 1 ? "" : fmt::format(", {} to a context", report.context_ranks);
    text = fmt::format("\nmemory plan of each of {} ranks{}, in MB, by tokens of context\n",
                       report.ranks, share);
  }
  text += fmt::format("{:>9} {:>8} {:>8} {:>8} {:>7} {:>8} {:>9} {:>9}\n", "context", "weights",
                      "draft w.", "KV", "ring", "prefill", "total", "fp16 KV");
  bool all_fit = true;
  for (const auto& [context, plan] : report.plans) {
    const bool fits = plan.total() <= report.available_bytes;
    text += plan_row(context, plan, fits);
    all_fit = all_fit && fits;
  }
  if (!all_fit) text += "*: more than is free\n";
  text += "KV, ring: the cache, quantized and recent; fp16 KV: for comparison, not used\n";
  text += "draft w.: weights that drafts read; prefill: while a prompt that long is read\n\n";
  const double available = report.available_bytes / 1e6;
  if (report.largest_context == 0) {
    return text + fmt::format("fits         nothing; {:.0f} MB are free\n             {}\n",
                              available, report.advice.text(flag_of));
  }
  const int all = report.config.max_positions, fit = report.largest_context;
  // Of the longest that fits.
  for (auto plan = report.plans.rbegin(); plan != report.plans.rend(); ++plan) {
    if (plan->second.page_memory_bytes == 0) continue;
    text += fmt::format("pages        up to {:.0f} MB of all requests and of cached prefixes",
                        plan->second.page_memory_bytes / 1e6);
    if (plan->second.host_cache_bytes > 0) {
      text += fmt::format(", and {:.0f} MB on the host", plan->second.host_cache_bytes / 1e6);
    }
    if (plan->second.tail_bytes > 0) {
      text += fmt::format("\n             up to {:.0f} MB of the host's for the ends of prompts",
                          plan->second.tail_bytes / 1e6);
    }
    text += '\n';
    break;
  }
  const std::string tokens = fit == all ? fmt::format("all {} tokens of the model", all)
                                        : fmt::format("{} of the model's {} tokens", fit, all);
  return text + fmt::format("fits         {}{}; {:.0f} MB are free{}\n", tokens,
                            report.limited_by_window ? ", its sliding window" : "", available,
                            report.ranks > 1 ? " for each rank" : "");
}

// What --draft-weights takes, and the bytes that it keeps beside the target's.
struct DraftChoice {
  std::string_view name;
  std::size_t (*bytes)(const WeightCost&);
};
constexpr DraftChoice kDraftChoices[] = {
    {"full", [](const WeightCost&) { return std::size_t{0}; }},
    {"4", [](const WeightCost& cost) { return cost.upper_bytes; }},
    {"8", [](const WeightCost& cost) { return cost.both_bytes; }},
    {"auto", [](const WeightCost& cost) { return cost.both_bytes; }},
};

std::string_view name_of(TargetWeights target) {
  return target == TargetWeights::k8Bits ? "8" : "checkpoint";
}

std::string weight_costs(const ModelReport& report) {
  std::string text = "\nweights in memory, in MB, by --target-weights (rows) and --draft-weights\n";
  text += fmt::format("{:<10}", "");
  for (const DraftChoice& choice : kDraftChoices) text += fmt::format(" {:>8}", choice.name);
  text += '\n';
  for (const WeightCost& cost : report.weights) {
    text += fmt::format("{:<10}", name_of(cost.target));
    for (const DraftChoice& choice : kDraftChoices) {
      text += fmt::format(" {:8.1f}", (cost.target_bytes + choice.bytes(cost)) / 1e6);
    }
    text += '\n';
  }
  text += "defaults: checkpoint, and auto (4 and 8 bits); full: what the target reads\n";
  if (report.weights.front().upper_bytes == 0) {
    text +=
        "drafts read the target's own codes (of 5 bits and more the upper four bits), so\n"
        "that no choice costs memory\n";
  }
  text += "quality: quantspec eval targets, of targets; quantspec eval fidelity, of drafts\n";
  return text;
}

Json weight_costs_json(const ModelReport& report) {
  Json rows = Json::array();
  for (const WeightCost& cost : report.weights) {
    for (const DraftChoice& choice : kDraftChoices) {
      rows.push_back(
          {{"target_weights", name_of(cost.target)},
           {"draft_weights", choice.name},
           {"weights_bytes", cost.target_bytes},
           {"draft_weights_bytes", choice.bytes(cost)},
           {"default", cost.target == TargetWeights::kCheckpoint && choice.name == "auto"}});
    }
  }
  return rows;
}

Json to_json(const MemoryPlan& plan) {
  return {{"weights_bytes", plan.weights_bytes},
          {"draft_weights_bytes", plan.draft_weights_bytes},
          {"kv_bytes", plan.kv_bytes},
          {"ring_bytes", plan.ring_bytes},
          {"prefill_bytes", plan.prefill_bytes},
          {"total_bytes", plan.total()},
          {"kv_fp16_bytes", plan.kv_fp16_bytes},
          {"page_memory_bytes", plan.page_memory_bytes},
          {"host_cache_bytes", plan.host_cache_bytes},
          {"tail_bytes", plan.tail_bytes}};
}

Json to_json(const std::string& model, const ModelReport& report) {
  const ModelConfig& config = report.config;
  Json json = {{"model", model},
               {"family", config.family},
               {"target_weights", report.target_weights},
               {"num_layers", config.num_layers},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_heads", config.num_heads},
               {"num_kv_heads", config.num_kv_heads},
               {"head_dim", config.head_dim},
               {"vocab_size", config.vocab_size},
               {"max_positions", config.max_positions},
               {"rope_type", name_of_rope(config.rope.type)},
               {"rope_theta", config.rope.theta},
               {"tied_head", config.tied_head},
               {"page_size", report.page_size},
               {"backend", report.backend},
               {"ranks", report.ranks},
               {"context_ranks", report.context_ranks},
               {"rank_counts", report.rank_counts},
               {"available_bytes", report.available_bytes},
               {"largest_context", report.largest_context},
               {"limited_by_window", report.limited_by_window},
               {"unread_tensors", report.unread_tensors},
               {"weights", weight_costs_json(report)},
               {"matrices", Json::object()},
               {"plans", Json::array()}};
  for (const auto& [name, format] : report.matrices) json["matrices"][name] = format;
  for (const auto& [context, plan] : report.plans) {
    Json entry = {{"context", context}};
    entry.update(to_json(plan));
    entry["fits"] = plan.total() <= report.available_bytes;
    json["plans"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

int run(const InfoArgs& args) {
  const int max_positions = open_model(args.engine.model)->config().max_positions;
  const auto contexts = context_lengths(max_positions, args.engine.ctx_size);
  const ModelReport report = report_model(args.engine, contexts);
  const std::string model = args.engine.model.string();
  write_output(args.json
                   ? dump_json(to_json(model, report)) + "\n"
                   : architecture(model, report) + weight_costs(report) + memory_plan(report));
  return 0;
}

}  // namespace quantspec::cli
