// Results as tables; docs/eval.md describes every column.

#include <algorithm>
#include <iterator>

#include "eval/eval.h"

namespace quantspec {

namespace {

ReportValue optional_layer(const std::optional<int>& layer) {
  if (!layer) return std::string("head");
  return std::to_string(*layer);
}

std::int64_t whole(std::size_t value) { return static_cast<std::int64_t>(value); }

// As a plan file has it (docs/bench.md).
ReportRow chosen_row(const std::string& part, WeightRead weights) {
  constexpr std::int64_t kBits[] = {4, 8, 16};
  return {{"layer", part}, {"weights", kBits[static_cast<int>(weights)]}};
}

ReportRow chosen_row(const Plan& plan, int layer) {
  constexpr const char* kReads[] = {"upper", "both", "full"};
  const KvAccess& kv = plan.layers[layer].kv;
  ReportRow row = chosen_row(std::to_string(layer), plan.layers[layer].weights);
  const char* pages = kv.tokens == KvTokens::kNone     ? "none"
                      : kv.tokens == KvTokens::kByMass ? "mass"
                                                       : "all";
  ReportValue budget;
  if (kv.chooses_pages()) budget = std::int64_t{kv.budget};
  const bool full = std::ranges::count(plan.target_full_layers, layer) > 0;
  row.insert(row.end(), {{"kv", std::string(kReads[static_cast<int>(kv.read)])},
                         {"pages", std::string(pages)},
                         {"budget", budget},
                         {"target_kv", std::string(full ? "full" : "both")}});
  return row;
}

void add_scores(ReportRow& row, const ScoreSummary& scores) {
  row.insert(row.end(), {{"tokens", scores.tokens},
                         {"acceptance", scores.acceptance.value},
                         {"acceptance_error", scores.acceptance.error},
                         {"top1_agreement", scores.agreement.value},
                         {"kl_mean", scores.kl.value},
                         {"kl_error", scores.kl.error},
                         {"kl_p99", scores.kl_p99},
                         {"nll", scores.nll.value}});
}

}  // namespace

Report report(std::span<const PerplexityRow> rows) {
  ReportTable whole_text{"perplexity", "Perplexity, against the first row", {}};
  ReportTable by_position{"perplexity_by_position", "By position in the window", {}};
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
                               {"top1_agreement", row.scores.agreement.value}});
    for (const Bucket& bucket : row.by_position) {
      by_position.rows.push_back({{"variant", row.variant},
                                  {"first_position", std::int64_t{bucket.first}},
                                  {"last_position", std::int64_t{bucket.last - 1}},
                                  {"tokens", bucket.scores.tokens},
                                  {"nll", bucket.scores.nll.value},
                                  {"kl_mean", bucket.scores.kl.value},
                                  {"top1_agreement", bucket.scores.agreement.value}});
    }
  }
  return {{std::move(whole_text), std::move(by_position)}};
}

Report report(std::span<const FidelityRow> rows) {
  ReportTable whole_text{"fidelity", "Readings against their references", {}};
  ReportTable by_position{"fidelity_by_position", "By tokens after the prompt", {}};
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

Report report(const SensitivityResult& result) {
  ReportTable entropy{"entropy", "Attention entropy, over pages and ring", {}};
  for (const LayerEntropy& layer : result.entropies) {
    entropy.rows.push_back({{"layer", std::int64_t{layer.layer}},
                            {"entropy", layer.nats},
                            {"entropy_relative", layer.relative}});
  }
  ReportTable layers{"sensitivity", "One layer changed", {}};
  for (const SensitivityRow& row : result.rows) {
    layers.rows.push_back({{"from", row.from},
                           {"layer", optional_layer(row.layer)},
                           {"change", row.change},
                           {"kl_mean", row.kl.value},
                           {"kl_change", row.kl_change},
                           {"acceptance", row.acceptance.value},
                           {"acceptance_change", row.acceptance_change},
                           {"bytes_change", std::int64_t{row.bytes_change}}});
  }
  ReportTable plans{"plan", "The chosen plan and the uniform one, on held-out prompts", {}};
  for (const PlanOutcome* outcome : {&result.base_outcome, &result.chosen_outcome}) {
    ReportRow row = {{"plan", outcome->name},
                     {"draft_bytes", whole(outcome->draft_bytes)},
                     {"predicted_acceptance", outcome->predicted_acceptance},
                     {"predicted_kl", outcome->predicted_kl}};
    add_scores(row, outcome->measured);
    row.emplace_back("target_kl_mean", outcome->target.kl.value);
    row.emplace_back("target_top1_agreement", outcome->target.agreement.value);
    plans.rows.push_back(std::move(row));
  }
  ReportTable chosen{"chosen", "The chosen plan", {}};
  for (int layer = 0; layer < std::ssize(result.chosen.layers); ++layer) {
    chosen.rows.push_back(chosen_row(result.chosen, layer));
  }
  ReportRow head = chosen_row("head", result.chosen.head);
  for (const char* key : {"kv", "pages", "budget", "target_kv"})
    head.emplace_back(key, ReportValue());
  chosen.rows.push_back(std::move(head));
  return {{std::move(entropy), std::move(layers), std::move(plans), std::move(chosen)}};
}

Report report(std::span<const LosslessRow> rows) {
  ReportTable table{"lossless", "Generation with speculation against plain decoding", {}};
  for (const LosslessRow& row : rows) {
    ReportValue difference;
    if (row.first_difference) difference = std::int64_t{*row.first_difference};
    table.rows.push_back({{"prompt", row.prompt},
                          {"sampling", row.sampling},
                          {"plan", row.drafter},
                          {"draft_len", row.draft_len},
                          {"tokens", std::int64_t{row.tokens}},
                          {"first_difference", difference},
                          {"acceptance", row.acceptance},
                          {"tokens_per_round", row.tokens_per_round}});
  }
  return {{std::move(table)}};
}

}  // namespace quantspec
