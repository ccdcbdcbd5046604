// What reading prompts in chunks costs: section 4 of docs/design.md.

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "eval/eval.h"
#include "eval/forced_pass.h"
#include "eval/memory.h"
#include "eval/partial.h"

namespace quantspec {

namespace {

using Scores = std::vector<std::vector<Score>>;

int tokens_of(const FidelityTask& task) {
  return static_cast<int>(task.prompts.front().tokens.size());
}

// The chunk that holds a prompt, then those that are measured, none of which need be greater.
std::vector<int> chunk_sizes(const EvalModel& model, int prompt, std::span<const int> chunks) {
  const int page_size = model.pool.shape().page_size;
  const int whole = (prompt + page_size - 1) / page_size * page_size;
  std::vector<int> sizes = {whole};
  for (const int chunk : chunks) sizes.push_back(std::min(chunk, whole));
  return sizes;
}

std::vector<Variant> targets(const EvalModel& model, const std::vector<int>& sizes) {
  std::vector<Variant> variants;
  for (const int size : sizes) {
    const Plan plan = Plan::target(model.model.config().num_layers, {});
    variants.push_back({"in chunks", plan, KvStore::kHierarchical, {}, size});
  }
  return variants;
}

// --- targets -------------------------------------------------------------------------------------

// A prompt read by every variant, and what was true after it.
struct Readings {
  std::vector<double> seconds;  // [variants]
  Scores scores;                // [variants][rows], against the first
};

// The order of reading turns around from one prompt to the next, so that what a machine does
// meanwhile favours none.
Readings read_prompt(const EvalModel& model, const std::vector<Variant>& variants,
                     const Prompt& prompt, bool backwards, const Model::Progress& progress) {
  const std::vector<TokenId> tokens = whole_text(prompt);
  const std::size_t count = variants.size(), parts = count + 1;
  Readings readings{std::vector<double>(count), {}};
  std::vector<std::unique_ptr<ForcedPass>> passes(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t v = backwards ? count - 1 - i : i;
    passes[v] = std::make_unique<ForcedPass>(model, static_cast<int>(tokens.size()), variants[v]);
    const Stopwatch clock;
    passes[v]->prefill(prompt.tokens, [&](double done) { progress((i + done) / parts); });
    readings.seconds[v] = clock.seconds();
  }
  const int context = static_cast<int>(prompt.tokens.size());
  readings.scores = score_passes(passes, tokens, context, context,
                                 [&](double done) { progress((count + done) / parts); });
  return readings;
}

Mean mean_of(const std::vector<double>& values) {
  std::vector<GroupSum> groups;
  for (const double value : values) groups.push_back({value, 1});
  return mean_over(groups);
}

// Of variant `v` against the first. REQUIRES: readings of a prompt or more.
PrefillRow row_of(const std::vector<Readings>& readings, std::size_t v) {
  Scores whole, scores;
  std::vector<double> whole_seconds, seconds, ratios;
  for (const Readings& prompt : readings) {
    whole.push_back(prompt.scores[0]);
    scores.push_back(prompt.scores[v]);
    whole_seconds.push_back(prompt.seconds[0]);
    seconds.push_back(prompt.seconds[v]);
    ratios.push_back(prompt.seconds[v] / prompt.seconds[0]);
  }
  return {.prompts = static_cast<int>(readings.size()),
          .scores = summarize(scores),
          .delta_nll = mean_change(whole, scores, &Score::nll),
          .seconds = mean_of(seconds),
          .whole_seconds = mean_of(whole_seconds),
          .ratio = mean_of(ratios)};
}

void measure_targets(const EvalModel& model, const FidelityTask& task, std::span<const int> chunks,
                     const ProgressCallback& progress, std::vector<PrefillRow>& rows) {
  const int context = tokens_of(task);
  const std::vector<Variant> variants = targets(model, chunk_sizes(model, context, chunks));
  std::vector<Readings> readings;
  const auto measure = [&] {
    for (const Prompt& prompt : task.prompts) {
      const std::size_t p = readings.size();
      readings.push_back(read_prompt(model, variants, prompt, p % 2 == 1, [&](double done) {
        if (progress) progress("target", (p + done) / task.prompts.size());
      }));
    }
  };
  measure_and_conclude(measure, [&] {
    for (std::size_t i = 0; i < chunks.size() && !readings.empty(); ++i) {
      PrefillRow row = row_of(readings, i + 1);
      row.context = context;
      row.chunk = chunks[i];
      rows.push_back(std::move(row));
    }
  });
}

// --- drafts --------------------------------------------------------------------------------------

PrefillDraftRow row_of(const Scores& whole, const Scores& scores) {
  const ScoreSummary summary = summarize(scores);
  return {.prompts = static_cast<int>(scores.size()),
          .tokens = summary.tokens,
          .acceptance = summary.acceptance,
          .whole_acceptance = summarize(whole).acceptance,
          .acceptance_change = mean_change(whole, scores, &Score::overlap)};
}

void measure_drafts(const EvalModel& model, const FidelityTask& task,
                    const std::vector<Plan>& plans, std::span<const int> chunks, int round,
                    const ProgressCallback& progress, std::vector<PrefillDraftRow>& rows) {
  const int context = tokens_of(task);
  const std::vector<int> sizes = chunk_sizes(model, context, chunks);
  // [sizes][plans][prompts]
  std::vector<std::vector<Scores>> all(sizes.size(), std::vector<Scores>(plans.size()));
  const auto measure_prompt = [&](std::size_t p) {
    const std::vector<TokenId> tokens = whole_text(task.prompts[p]);
    std::vector<Scores> scores;  // [sizes][plans]
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const TrialOptions options{round, sizes[i]};
      scores.push_back(score_drafts(model, plans, tokens, context, options, [&](double done) {
        const double part = (i + done) / sizes.size();
        if (progress) progress("drafts", (p + part) / task.prompts.size());
      }));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t plan = 0; plan < plans.size(); ++plan) {
        all[i][plan].push_back(std::move(scores[i][plan]));
      }
    }
  };
  const auto measure = [&] {
    for (std::size_t p = 0; p < task.prompts.size(); ++p) measure_prompt(p);
  };
  measure_and_conclude(measure, [&] {
    if (all[0][0].empty()) return;
    for (std::size_t plan = 0; plan < plans.size(); ++plan) {
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        PrefillDraftRow row = row_of(all[0][plan], all[i + 1][plan]);
        row.plan = plans[plan].name;
        row.context = context;
        row.chunk = chunks[i];
        rows.push_back(std::move(row));
      }
    }
  });
}

std::size_t bytes_of(const EvalModel& model, const FidelityTask& task,
                     std::span<const int> chunks) {
  const std::vector<int> sizes = chunk_sizes(model, tokens_of(task), chunks);
  const int capacity = static_cast<int>(whole_text(task.prompts.front()).size());
  std::size_t bytes = variants_bytes(model, targets(model, sizes), capacity);
  for (const std::vector<Plan>& plans : by_target(task.plans)) {
    bytes = std::max(bytes, drafts_bytes(model, plans, capacity));
  }
  return bytes + prefill_bytes(model, capacity, sizes.front());
}

}  // namespace

void eval_prefill(const EvalModel& model, std::span<const FidelityTask> tasks,
                  std::span<const int> chunks, int round, const ProgressCallback& progress,
                  PrefillResult& result) {
  check(!chunks.empty(), "there are chunks");
  for (const FidelityTask& task : tasks) {
    check(!task.prompts.empty(), "there are prompts");
    require_memory(model, bytes_of(model, task, chunks), tokens_of(task));
  }
  for (const FidelityTask& task : tasks) {
    measure_targets(model, task, chunks, progress, result.targets);
    for (const std::vector<Plan>& plans : by_target(task.plans)) {
      measure_drafts(model, task, plans, chunks, round, progress, result.drafts);
    }
  }
}

}  // namespace quantspec
