// Results as tables; docs/eval.md describes every column.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "datasets/fields.h"
#include "eval/eval.h"
#include "eval/report_views.h"

namespace quantspec {

namespace {

ReportValue optional_layer(const std::optional<int>& layer) {
  if (!layer) return std::string("head");
  return std::to_string(*layer);
}

std::int64_t whole(std::size_t value) { return static_cast<std::int64_t>(value); }

// As a plan file has it (docs/bench.md).
ReportRow chosen_row(const std::string& part, WeightRead weights) {
  const ReportValue reads[] = {std::int64_t{4}, std::int64_t{8}, std::string("full")};
  return {{"layer", part}, {"weights", reads[static_cast<int>(weights)]}};
}

ReportRow chosen_row(const Plan& plan, int layer) {
  constexpr const char* kReads[] = {"upper", "both", "full"};
  const KvAccess& kv = plan.layers[layer].kv;
  ReportRow row = chosen_row(std::to_string(layer), plan.layers[layer].weights);
  const char* pages = kv.tokens == KvTokens::kNone     ? "none"
                      : kv.tokens == KvTokens::kByMass ? "mass"
                                                       : "all";
  ReportValue budget;
  if (kv.chooses_pages() && kv.budget.is_share()) budget = kv.budget.text();
  if (kv.chooses_pages() && !kv.budget.is_share()) budget = std::int64_t{kv.budget.tokens(0)};
  const bool full = std::ranges::count(plan.target_full_layers, layer) > 0;
  row.insert(row.end(), {{"kv", std::string(kReads[static_cast<int>(kv.read)])},
                         {"pages", std::string(pages)},
                         {"budget", budget},
                         {"target_kv", std::string(full ? "full" : "both")}});
  return row;
}

ReportValue draft_len_value(const std::optional<int>& draft_len) {
  if (!draft_len) return std::string("auto");
  return std::int64_t{*draft_len};
}

// The means of the groups (windows, prompts) behind the means of a row.
void add_values(ReportRow& row, const ScoreSummary& scores) {
  row.insert(row.end(), {{"tokens_values", scores.tokens_of_groups},
                         {"nll_values", scores.nll.of_groups},
                         {"kl_values", scores.kl.of_groups},
                         {"top1_agreement_values", scores.agreement.of_groups}});
}

// Null where nothing was scored.
void add_scores(ReportRow& row, const ScoreSummary& scores) {
  const auto known = [&](double value) -> ReportValue {
    if (scores.tokens == 0) return {};
    return value;
  };
  row.insert(row.end(), {{"tokens", scores.tokens},
                         {"acceptance", known(scores.acceptance.value)},
                         {"acceptance_error", known(scores.acceptance.error)},
                         {"top1_agreement", known(scores.agreement.value)},
                         {"kl_mean", known(scores.kl.value)},
                         {"kl_error", known(scores.kl.error)},
                         {"kl_p99", known(scores.kl_p99)},
                         {"nll", known(scores.nll.value)},
                         {"acceptance_values", scores.acceptance.of_groups}});
  add_values(row, scores);
}

// --- in words ------------------------------------------------------------------------------------

}  // namespace

// NaN, of one prompt, is no error that anything is within.
bool SensitivityResult::is_within_error() const {
  return is_verified() && std::abs(acceptance_change.value) <= acceptance_change.error;
}

bool SensitivityResult::is_worse() const {
  return is_verified() && acceptance_change.value < 0 && !is_within_error() &&
         base_outcome.draft_bytes <= draft_budget;
}

namespace {

bool same_reads(const Plan& one, const Plan& other) {
  return one.layers == other.layers && one.head == other.head &&
         one.target_full_layers == other.target_full_layers;
}

// "0.8830 becomes 0.8812 (-0.0018 ± 0.0007)"; one prompt gives no error.
std::string becomes(double from, double to, const Mean& change) {
  return fmt::format("{} becomes {} ({}{}{})", report_number(from), report_number(to),
                     change.value > 0 ? "+" : "", report_number(change.value),
                     std::isfinite(change.error) ? " ± " + report_number(change.error) : "");
}

Message describe_verification(const SensitivityResult& result) {
  if (!result.is_verified()) return "It was not verified.";
  const PlanOutcome &base = result.base_outcome, &chosen = result.chosen_outcome;
  const std::string numbers =
      fmt::format("acceptance {}, KL in nats {}, of {:.2f} MB a draft step reads {:.2f}",
                  becomes(base.measured.acceptance.value, chosen.measured.acceptance.value,
                          result.acceptance_change),
                  becomes(base.measured.kl.value, chosen.measured.kl.value, result.kl_change),
                  base.draft_bytes / 1e6, chosen.draft_bytes / 1e6);
  if (result.is_within_error()) {
    return Message::format("On those others no difference beyond the error: {}.", numbers);
  }
  if (!result.is_worse()) return Message::format("On those others {}.", numbers);
  return Message::format(
      "On those others the chosen plan is WORSE than {}: {}. Draft by {}, or let more prompts "
      "choose ({} {}).",
      base.name, numbers, base.name, field::kPrompts, 2 * result.prompts);
}

Message describe_choice(const SensitivityResult& result) {
  if (!result.chosen) return "No plan was chosen: not everything that it takes was measured.";
  const std::string measured = fmt::format("Measured on {} prompt{}, verified on as many others.",
                                           result.prompts, result.prompts == 1 ? "" : "s");
  const std::string& base = result.base_outcome.name;
  if (same_reads(*result.chosen, result.base)) {
    return Message::format(
        "{} The chosen plan is the uniform one, {}: no change that fits the bytes saves "
        "KL.",
        measured, base);
  }
  std::vector<std::string> parts;
  for (std::size_t layer = 0; layer < result.chosen->layers.size(); ++layer) {
    if (result.chosen->layers[layer] != result.base.layers[layer]) {
      parts.push_back(fmt::format("layer {}", layer));
    }
  }
  if (result.chosen->head != result.base.head) parts.push_back("the head");
  if (!result.chosen->target_full_layers.empty()) parts.push_back("the target");
  return Message::format("{} The chosen plan differs from the uniform one, {}, in {}. {}", measured,
                         base, fmt::join(parts, ", "), describe_verification(result));
}

std::string describe_streams(std::span<const StreamRow> rows) {
  if (rows.empty()) return "Nothing was generated.";
  int cached = 0, preemptions = 0;
  for (const StreamRow& row : rows) cached += row.cached_tokens, preemptions += row.preemptions;
  const std::string all =
      fmt::format("{} generations beside others, {} tokens found cached, {} preemptions",
                  rows.size(), cached, preemptions);
  const auto is_different = [](const StreamRow& row) { return row.first_difference.has_value(); };
  const auto first = std::ranges::find_if(rows, is_different);
  if (first == rows.end()) return all + ": all identical to each alone";
  return fmt::format("{}: {} differ from each alone; the first at token {} after {}, {}, {}", all,
                     std::ranges::count_if(rows, is_different), *first->first_difference,
                     first->prompt, first->sampling, first->drafter);
}

std::string describe_losslessness(std::span<const LosslessRow> rows) {
  if (rows.empty()) return "Nothing was generated.";
  const auto is_different = [](const LosslessRow& row) { return row.first_difference.has_value(); };
  const auto sampled = [&](std::string_view how) {
    return std::ranges::count(rows, how, &LosslessRow::sampling) > 0;
  };
  std::string how = sampled("greedy") ? "greedy" : "";
  if (sampled("coupled")) how += how.empty() ? "coupled" : " and coupled";
  const std::string all = fmt::format("{} generation{} of {} tokens ({})", rows.size(),
                                      rows.size() == 1 ? "" : "s", rows[0].tokens, how);
  const auto first = std::ranges::find_if(rows, is_different);
  if (first == rows.end()) return all + ": all identical";
  return fmt::format(
      "{}: {} differ from plain decoding; the first at token {} after {}, {}, {} with "
      "draft length {}",
      all, std::ranges::count_if(rows, is_different), *first->first_difference, first->prompt,
      first->sampling, first->drafter,
      first->draft_len ? std::to_string(*first->draft_len) : "auto");
}

template <typename Row>
bool all_identical(std::span<const Row> rows) {
  return std::ranges::none_of(rows,
                              [](const Row& row) { return row.first_difference.has_value(); });
}

}  // namespace

Report report(std::span<const PerplexityRow> rows) {
  ReportTable whole_text{"perplexity", perplexity_views(), {}};
  ReportTable by_position{"perplexity_by_position", perplexity_position_views(), {}};
  for (const PerplexityRow& row : rows) {
    whole_text.rows.push_back({{"variant", row.variant},
                               {"windows", std::int64_t{row.windows}},
                               {"tokens", row.scores.tokens},
                               {"perplexity", row.perplexity()},
                               {"nll", row.scores.nll.value},
                               {"delta_nll", row.delta_nll.value},
                               {"delta_nll_error", row.delta_nll.error},
                               {"kl_mean", row.scores.kl.value},
                               {"kl_p99", row.scores.kl_p99},
                               {"top1_agreement", row.scores.agreement.value},
                               {"delta_nll_values", row.delta_nll.of_groups}});
    add_values(whole_text.rows.back(), row.scores);
    for (const Bucket& bucket : row.by_position) {
      by_position.rows.push_back({{"variant", row.variant},
                                  {"first_position", std::int64_t{bucket.first}},
                                  {"last_position", std::int64_t{bucket.last - 1}},
                                  {"tokens", bucket.scores.tokens},
                                  {"nll", bucket.scores.nll.value},
                                  {"kl_mean", bucket.scores.kl.value},
                                  {"top1_agreement", bucket.scores.agreement.value}});
      add_values(by_position.rows.back(), bucket.scores);
    }
  }
  return {{std::move(whole_text), std::move(by_position)}};
}

Report report(std::span<const FidelityRow> rows) {
  ReportTable whole_text{"fidelity", fidelity_views(), {}};
  ReportTable by_position{"fidelity_by_position", fidelity_position_views(), {}};
  for (const FidelityRow& row : rows) {
    const ReportRow head = {{"reading", row.reading},
                            {"reference", row.reference},
                            {"context", std::int64_t{row.context}}};
    ReportRow all = head;
    all.emplace_back("prompts", std::int64_t{row.prompts});
    add_scores(all, row.scores);
    whole_text.rows.push_back(std::move(all));
    for (const Bucket& bucket : row.by_position) {
      ReportRow part = head;
      part.emplace_back("first_token", std::int64_t{bucket.first});
      part.emplace_back("last_token", std::int64_t{bucket.last - 1});
      add_scores(part, bucket.scores);
      by_position.rows.push_back(std::move(part));
    }
  }
  return {{std::move(whole_text), std::move(by_position)}};
}

namespace {

void add_mean(ReportRow& row, const std::string& key, const Mean& mean) {
  row.emplace_back(key, mean.value);
  row.emplace_back(key + "_error", mean.error);
}

}  // namespace

Report report(std::span<const TargetRow> rows) {
  ReportTable table{"targets", target_views(), {}};
  for (const TargetRow& from : rows) {
    ReportRow row = {{"reading", from.reading},
                     {"reference", from.reference},
                     {"context", std::int64_t{from.context}},
                     {"prompts", std::int64_t{from.prompts}}};
    add_scores(row, from.scores);
    add_mean(row, "delta_nll", from.delta_nll);
    row.insert(row.end(), {{"perplexity", from.perplexity()},
                           {"reference_perplexity", from.reference_perplexity()},
                           {"perplexity_change", from.perplexity() - from.reference_perplexity()},
                           {"delta_nll_values", from.delta_nll.of_groups}});
    table.rows.push_back(std::move(row));
  }
  return {{std::move(table)}};
}

namespace {

ReportTable prefill_table(std::span<const PrefillRow> rows) {
  ReportTable table{"prefill", prefill_views(), {}};
  for (const PrefillRow& from : rows) {
    ReportRow row = {{"context", std::int64_t{from.context}},
                     {"chunk", std::int64_t{from.chunk}},
                     {"prompts", std::int64_t{from.prompts}}};
    add_scores(row, from.scores);
    add_mean(row, "delta_nll", from.delta_nll);
    add_mean(row, "seconds", from.seconds);
    add_mean(row, "whole_seconds", from.whole_seconds);
    add_mean(row, "ratio", from.ratio);
    row.insert(row.end(), {{"delta_nll_values", from.delta_nll.of_groups},
                           {"seconds_values", from.seconds.of_groups},
                           {"whole_seconds_values", from.whole_seconds.of_groups}});
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable prefill_drafts_table(std::span<const PrefillDraftRow> rows) {
  ReportTable table{"prefill_drafts", prefill_draft_views(), {}};
  for (const PrefillDraftRow& from : rows) {
    ReportRow row = {{"plan", from.plan},
                     {"context", std::int64_t{from.context}},
                     {"chunk", std::int64_t{from.chunk}},
                     {"prompts", std::int64_t{from.prompts}},
                     {"tokens", from.tokens}};
    add_mean(row, "acceptance", from.acceptance);
    add_mean(row, "whole_acceptance", from.whole_acceptance);
    add_mean(row, "acceptance_change", from.acceptance_change);
    row.insert(row.end(), {{"acceptance_values", from.acceptance.of_groups},
                           {"whole_acceptance_values", from.whole_acceptance.of_groups}});
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

Report report(const PrefillResult& result) {
  return {{prefill_table(result.targets), prefill_drafts_table(result.drafts)}};
}

namespace {

ReportTable entropy_table(const SensitivityResult& result) {
  ReportTable table{"entropy", entropy_views(), {}};
  for (const LayerEntropy& layer : result.entropies) {
    table.rows.push_back({{"layer", std::int64_t{layer.layer}},
                          {"entropy", layer.nats},
                          {"entropy_relative", layer.relative}});
  }
  return table;
}

ReportTable layers_table(const SensitivityResult& result) {
  ReportTable table{"sensitivity", sensitivity_views(), {}};
  for (const SensitivityRow& row : result.rows) {
    table.rows.push_back({{"from", row.from},
                          {"layer", optional_layer(row.layer)},
                          {"change", row.change},
                          {"kl_mean", row.kl.value},
                          {"kl_change", row.kl_change},
                          {"acceptance", row.acceptance.value},
                          {"acceptance_change", row.acceptance_change},
                          {"bytes_change", std::int64_t{row.bytes_change}},
                          {"kl_values", row.kl.of_groups},
                          {"acceptance_values", row.acceptance.of_groups}});
  }
  return table;
}

// From the base to the chosen plan, which alone has one; null where nothing was measured.
void add_change(ReportRow& row, const SensitivityResult& result, bool known) {
  const auto value = [&](auto number) { return known ? ReportValue(number) : ReportValue(); };
  row.insert(row.end(), {{"acceptance_change", value(result.acceptance_change.value)},
                         {"acceptance_change_error", value(result.acceptance_change.error)},
                         {"kl_change", value(result.kl_change.value)},
                         {"kl_change_error", value(result.kl_change.error)},
                         {"worse", value(result.is_worse())}});
}

ReportTable plans_table(const SensitivityResult& result) {
  ReportTable table{"plan", plan_views(), {}};
  if (!result.chosen) return table;
  for (const PlanOutcome* outcome : {&result.base_outcome, &result.chosen_outcome}) {
    ReportRow row = {{"plan", outcome->name},
                     {"draft_bytes", whole(outcome->draft_bytes)},
                     {"predicted_acceptance", outcome->predicted_acceptance},
                     {"predicted_kl", outcome->predicted_kl}};
    add_scores(row, outcome->measured);
    const bool known = outcome->target.tokens > 0;
    row.emplace_back("target_kl_mean",
                     known ? ReportValue(outcome->target.kl.value) : ReportValue());
    row.emplace_back("target_top1_agreement",
                     known ? ReportValue(outcome->target.agreement.value) : ReportValue());
    add_change(row, result, outcome == &result.chosen_outcome && result.is_verified());
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable chosen_table(const SensitivityResult& result) {
  ReportTable table{"chosen", chosen_views(), {}};
  if (!result.chosen) return table;
  for (int layer = 0; layer < std::ssize(result.chosen->layers); ++layer) {
    table.rows.push_back(chosen_row(*result.chosen, layer));
  }
  ReportRow head = chosen_row("head", result.chosen->head);
  for (const char* key : {"kv", "pages", "budget", "target_kv"}) {
    head.emplace_back(key, ReportValue());
  }
  table.rows.push_back(std::move(head));
  return table;
}

}  // namespace

Report report(const SensitivityResult& result) {
  return {{entropy_table(result), layers_table(result), plans_table(result), chosen_table(result)},
          describe_choice(result)};
}

Report report(std::span<const LosslessRow> rows) {
  ReportTable table{"lossless", lossless_views(), {}};
  for (const LosslessRow& row : rows) {
    ReportValue difference;
    if (row.first_difference) difference = std::int64_t{*row.first_difference};
    table.rows.push_back({{"prompt", row.prompt},
                          {"sampling", row.sampling},
                          {"plan", row.drafter},
                          {"draft_len", draft_len_value(row.draft_len)},
                          {"tokens", std::int64_t{row.tokens}},
                          {"first_difference", difference},
                          {"acceptance_rate", row.acceptance},
                          {"tokens_per_round", row.tokens_per_round}});
  }
  return {{std::move(table)}, describe_losslessness(rows), all_identical(rows)};
}

Report report(std::span<const StreamRow> rows) {
  ReportTable table{"stream", stream_views(), {}};
  for (const StreamRow& row : rows) {
    ReportValue difference;
    if (row.first_difference) difference = std::int64_t{*row.first_difference};
    table.rows.push_back({{"prompt", row.prompt},
                          {"sampling", row.sampling},
                          {"plan", row.drafter},
                          {"draft_len", draft_len_value(row.draft_len)},
                          {"warm", row.warm},
                          {"arrival_step", std::int64_t{row.arrival}},
                          {"tokens", std::int64_t{row.tokens}},
                          {"cached_tokens", std::int64_t{row.cached_tokens}},
                          {"preemptions", std::int64_t{row.preemptions}},
                          {"first_difference", difference},
                          {"acceptance_rate", row.acceptance},
                          {"tokens_per_round", row.tokens_per_round}});
  }
  return {{std::move(table)}, describe_streams(rows), all_identical(rows)};
}

}  // namespace quantspec
