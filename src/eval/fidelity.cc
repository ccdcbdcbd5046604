#include <algorithm>

#include "base/error.h"
#include "eval/eval.h"
#include "eval/forced_pass.h"

namespace quantspec {

namespace {

constexpr int kBuckets = 4;  // parts of a continuation

using Scores = std::vector<std::vector<Score>>;

// `score` on every prompt: [readings][prompts][rows].
template <typename ScorePrompt>
std::vector<Scores> score_prompts(std::span<const Prompt> prompts, std::size_t readings,
                                  std::string_view stage, const ProgressCallback& progress,
                                  const ScorePrompt& score) {
  std::vector<Scores> all(readings);
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<TokenId> tokens = whole_text(prompts[p]);
    Scores scores = score(tokens, static_cast<int>(prompts[p].tokens.size()), [&](double done) {
      if (progress) progress(stage, (p + done) / prompts.size());
    });
    for (std::size_t i = 0; i < readings; ++i) all[i].push_back(std::move(scores[i]));
  }
  return all;
}

FidelityRow row_of(std::string reading, std::string reference, std::span<const Prompt> prompts,
                   const Scores& scores) {
  FidelityRow row{std::move(reading),
                  std::move(reference),
                  static_cast<int>(prompts.front().tokens.size()),
                  static_cast<int>(prompts.size()),
                  summarize(scores),
                  {}};
  const int rows = static_cast<int>(scores.front().size());
  const int buckets = std::min(kBuckets, rows);
  for (int i = 0; i < buckets; ++i) {
    const int first = rows * i / buckets, last = rows * (i + 1) / buckets;
    row.by_position.push_back({first, last, summarize(scores, first, last)});
  }
  return row;
}

}  // namespace

std::vector<FidelityRow> eval_target_fidelity(const EvalModel& model,
                                              std::span<const Prompt> prompts,
                                              const ProgressCallback& progress) {
  check(!prompts.empty(), "there are prompts");
  std::vector<Variant> variants = kv_variants(model.model);
  variants.resize(3);  // fp16, and 8 bits of either kind
  const auto scores =
      score_prompts(prompts, variants.size(), "target", progress,
                    [&](std::span<const TokenId> tokens, int prompt, const Model::Progress& done) {
                      return score_variants(model, variants, tokens, prompt, prompt, done);
                    });
  std::vector<FidelityRow> rows;
  for (std::size_t v = 1; v < variants.size(); ++v) {
    rows.push_back(row_of(variants[v].name, variants[0].name, prompts, scores[v]));
  }
  return rows;
}

std::vector<FidelityRow> eval_draft_fidelity(const EvalModel& model,
                                             std::span<const Prompt> prompts,
                                             const std::vector<Plan>& plans, int round,
                                             const ProgressCallback& progress) {
  check(!prompts.empty(), "there are prompts");
  std::vector<FidelityRow> rows;
  for (auto first = plans.begin(); first != plans.end();) {
    // Neighbours with one target share its passes.
    const auto last = std::find_if(first, plans.end(), [&](const Plan& plan) {
      return plan.target_full_layers != first->target_full_layers;
    });
    const std::vector<Plan> group(first, last);
    const auto scores = score_prompts(
        prompts, group.size(), "drafts", progress,
        [&](std::span<const TokenId> tokens, int prompt, const Model::Progress& done) {
          return score_drafts(model, group, tokens, prompt, round, done);
        });
    for (std::size_t i = 0; i < group.size(); ++i) {
      rows.push_back(row_of(group[i].name, "target", prompts, scores[i]));
    }
    first = last;
  }
  return rows;
}

}  // namespace quantspec
