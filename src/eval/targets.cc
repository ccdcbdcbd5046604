// Two models, one text: how far targets are from the same model, read otherwise.

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/fields.h"
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

// fp16 KV, which is the plain cache, and 8-bit KV: what a user can choose.
std::vector<Variant> targets(const Model& model) {
  std::vector<Variant> variants = kv_variants(model);
  variants.resize(2);
  return variants;
}

std::vector<Variant> plain(const Model& model) {
  std::vector<Variant> variants = kv_variants(model);
  variants.resize(1);
  return variants;
}

// Tokens after a shorter prompt read nothing at 8 bits, so that both targets would be one.
void require_pages(const EvalModel& model, int context) {
  const int least = 2 * model.pool.shape().page_size;
  if (context >= least) return;
  fail(ErrorKind::kInvalidRequest,
       "{} {}: after so short a prompt no quantized page is read; {} tokens or more work, or a "
       "smaller {}",
       field::kContext, context, least, field::kPageSize);
}

void require_memory_of_both(const EvalModel& model, const EvalModel& base,
                            const FidelityTask& task) {
  const int capacity = static_cast<int>(whole_text(task.prompts.front()).size());
  const std::size_t measured =
      variants_bytes(model, targets(model.model), capacity) + prefill_bytes(model, capacity);
  const std::size_t compared =
      variants_bytes(base, plain(base.model), capacity) + prefill_bytes(base, capacity);
  require_memory(model, measured, base, compared, tokens_of(task));
}

// The base's scores, then those of each target: [1 + targets][rows].
Scores score_prompt(const EvalModel& model, const EvalModel& base, const Prompt& prompt,
                    const Model::Progress& progress) {
  const std::vector<TokenId> tokens = whole_text(prompt);
  const int context = static_cast<int>(prompt.tokens.size());
  // A slow base takes nearly all of the time, so its tokens are what is counted.
  const double in_prompt = static_cast<double>(context) / tokens.size();
  const std::vector<Variant> base_variants = plain(base.model), variants = targets(model.model);
  auto passes = open_passes(base, base_variants, tokens, context,
                            [&](double done) { progress(done * in_prompt); });
  auto measured =
      open_passes(model, variants, tokens, context, [&](double) { progress(in_prompt); });
  std::ranges::move(measured, std::back_inserter(passes));
  return score_passes(passes, tokens, context, context,
                      [&](double done) { progress(in_prompt + done * (1 - in_prompt)); });
}

void measure(const EvalModel& model, const EvalBase& base, const FidelityTask& task,
             const ProgressCallback& progress, std::vector<TargetRow>& rows) {
  const std::vector<Variant> variants = targets(model.model);
  std::vector<Scores> all(1 + variants.size());  // [1 + targets][prompts][rows]
  const auto measure_prompts = [&] {
    for (std::size_t p = 0; p < task.prompts.size(); ++p) {
      Scores scores = score_prompt(model, base.model, task.prompts[p], [&](double done) {
        if (progress) progress("targets", (p + done) / task.prompts.size());
      });
      for (std::size_t i = 0; i < all.size(); ++i) all[i].push_back(std::move(scores[i]));
    }
  };
  measure_and_conclude(measure_prompts, [&] {
    for (std::size_t v = 0; v < variants.size() && !all[0].empty(); ++v) {
      const Scores& scores = all[1 + v];
      rows.push_back({.reading = variants[v].name,
                      .reference = base.name,
                      .context = tokens_of(task),
                      .prompts = static_cast<int>(scores.size()),
                      .scores = summarize(scores),
                      .delta_nll = mean_change(all[0], scores, &Score::nll),
                      .reference_nll = summarize(all[0]).nll.value});
    }
  });
}

}  // namespace

double TargetRow::perplexity() const { return std::exp(scores.nll.value); }
double TargetRow::reference_perplexity() const { return std::exp(reference_nll); }

void eval_targets(const EvalModel& model, const EvalBase& base, std::span<const FidelityTask> tasks,
                  const ProgressCallback& progress, std::vector<TargetRow>& rows) {
  check(model.model.config().vocab_size == base.model.model.config().vocab_size &&
            model.pool.shape().page_size == base.model.pool.shape().page_size,
        "both models read one text in pages of one size");
  for (const FidelityTask& task : tasks) {
    check(!task.prompts.empty(), "there are prompts");
    require_pages(model, tokens_of(task));
    require_memory_of_both(model, base.model, task);
  }
  for (const FidelityTask& task : tasks) measure(model, base, task, progress, rows);
}

}  // namespace quantspec
