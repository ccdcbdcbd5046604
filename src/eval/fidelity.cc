#include <algorithm>

#include "base/error.h"
#include "eval/eval.h"
#include "eval/forced_pass.h"
#include "eval/memory.h"
#include "eval/partial.h"

namespace quantspec {

namespace {

constexpr int kBuckets = 4;  // parts of a continuation

using Scores = std::vector<std::vector<Score>>;

// fp16, and 8 bits of either kind.
std::vector<Variant> targets(const Model& model) {
  std::vector<Variant> variants = kv_variants(model);
  variants.resize(3);
  return variants;
}

FidelityRow row_of(std::string reading, std::string reference, int context, const Scores& scores) {
  FidelityRow row{std::move(reading),
                  std::move(reference),
                  context,
                  static_cast<int>(scores.size()),
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

// What is compared with what: a row for each.
struct Pair {
  std::string reading;
  std::string reference;
};

// `score` on every prompt gives the scores of every pair, [pairs][rows].
template <typename ScorePrompt>
void measure_pairs(std::span<const Prompt> prompts, const std::vector<Pair>& pairs,
                   std::string_view stage, const ProgressCallback& progress,
                   const ScorePrompt& score, std::vector<FidelityRow>& rows) {
  const int context = static_cast<int>(prompts.front().tokens.size());
  std::vector<Scores> all(pairs.size());
  const auto measure = [&] {
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      Scores scores = score(whole_text(prompts[p]), context, [&](double done) {
        if (progress) progress(stage, (p + done) / prompts.size());
      });
      for (std::size_t i = 0; i < pairs.size(); ++i) all[i].push_back(std::move(scores[i]));
    }
  };
  measure_and_conclude(measure, [&] {
    for (std::size_t i = 0; i < pairs.size() && !all[i].empty(); ++i) {
      rows.push_back(row_of(pairs[i].reading, pairs[i].reference, context, all[i]));
    }
  });
}

void measure_targets(const EvalModel& model, std::span<const Prompt> prompts,
                     const ProgressCallback& progress, std::vector<FidelityRow>& rows) {
  const std::vector<Variant> variants = targets(model.model);
  std::vector<Pair> pairs;
  for (std::size_t v = 1; v < variants.size(); ++v) {
    pairs.push_back({variants[v].name, variants[0].name});
  }
  measure_pairs(
      prompts, pairs, "target", progress,
      [&](std::span<const TokenId> tokens, int prompt, const Model::Progress& done) {
        Scores scores = score_variants(model, variants, tokens, prompt, prompt, done);
        scores.erase(scores.begin());  // the reference's
        return scores;
      },
      rows);
}

void measure_drafts(const EvalModel& model, std::span<const Prompt> prompts,
                    const std::vector<Plan>& plans, int round, const ProgressCallback& progress,
                    std::vector<FidelityRow>& rows) {
  std::vector<Pair> pairs;
  for (const Plan& plan : plans) pairs.push_back({plan.name, "target"});
  measure_pairs(
      prompts, pairs, "drafts", progress,
      [&](std::span<const TokenId> tokens, int prompt, const Model::Progress& done) {
        return score_drafts(model, plans, tokens, prompt, {.round = round}, done);
      },
      rows);
}

std::size_t bytes_of(const EvalModel& model, const FidelityTask& task) {
  const int capacity = static_cast<int>(whole_text(task.prompts.front()).size());
  std::size_t bytes = variants_bytes(model, targets(model.model), capacity);
  for (const std::vector<Plan>& plans : by_target(task.plans)) {
    bytes = std::max(bytes, drafts_bytes(model, plans, capacity));
  }
  return bytes + prefill_bytes(model, capacity);
}

}  // namespace

void eval_fidelity(const EvalModel& model, std::span<const FidelityTask> tasks, int round,
                   const ProgressCallback& progress, std::vector<FidelityRow>& rows) {
  for (const FidelityTask& task : tasks) {
    check(!task.prompts.empty(), "there are prompts");
    require_memory(model, bytes_of(model, task),
                   static_cast<int>(task.prompts.front().tokens.size()));
  }
  for (const FidelityTask& task : tasks) {
    measure_targets(model, task.prompts, progress, rows);
    for (const std::vector<Plan>& plans : by_target(task.plans)) {
      measure_drafts(model, task.prompts, plans, round, progress, rows);
    }
  }
}

}  // namespace quantspec
