#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "eval/eval.h"
#include "eval/lossless_modes.h"
#include "eval/memory.h"
#include "rivals/rivals.h"

namespace quantspec {

namespace {

constexpr std::string_view kStage = "generating";

// `count` tokens after the prompt, the first of which prefill chose.
std::vector<TokenId> generate(Decoder& decoder, Sequence& sequence, std::size_t prompt, int count,
                              const Model::Progress& progress) {
  while (std::ssize(sequence.tokens()) < static_cast<std::ptrdiff_t>(prompt) + count) {
    const auto made = static_cast<int>(sequence.tokens().size() - prompt);
    progress(static_cast<double>(made) / count);
    decoder.step(sequence, count - made);
  }
  return {sequence.tokens().begin() + static_cast<std::ptrdiff_t>(prompt), sequence.tokens().end()};
}

// After the prompt, plain and drafted decoding go on from a third cache, each in a copy that shares
// the prompt's pages.
void require_memory_for(const EvalModel& model, const Prompt& prompt,
                        const LosslessOptions& options) {
  const int context = static_cast<int>(prompt.tokens.size());
  std::size_t most = 0;
  for (const Drafter& drafter : options.drafters) {
    most = std::max(most, cache_bytes(model, context + options.predict, kv_options(drafter.plans)));
  }
  require_memory(model, 3 * most + prefill_bytes(model, context + options.predict), context);
}

// One prompt in one mode with one drafter.
class Trial {
 public:
  // progress gets the share of the comparison that goes on.
  Trial(const EvalModel& model, const Prompt& prompt, const LosslessMode& mode,
        const Drafter& drafter, int predict, const Model::Progress& progress)
      : weights_(model.model.weights()),
        decoder_(model.model, model.ranks),
        prompt_(prompt),
        mode_(mode),
        drafter_(drafter),
        predict_(predict),
        progress_(progress),
        start_(model.model, model.pool, static_cast<int>(prompt.tokens.size()) + predict,
               mode.options,
               with_rivals(kv_options(drafter.plans), model.model.backend(), model.pool.shape())) {
    decoder_.prefill(start_, prompt.tokens, [&](double) { progress_(0); });
  }

  LosslessRow compare(std::optional<int> draft_len) {
    if (plain_.empty()) {
      Sequence plain = start_.fork(mode_.options);
      plain_ =
          generate(decoder_, plain, prompt_.tokens.size(), predict_, [&](double) { progress_(0); });
    }
    DecodingOptions options = mode_.options;
    options.draft_len = draft_len;
    options.plans = drafter_.plans;
    Sequence sequence = start_.fork(options);
    const auto tokens = generate(decoder_, sequence, prompt_.tokens.size(), predict_, progress_);
    weights_.require_unchanged();
    return {prompt_.name,
            mode_.name,
            drafter_.name,
            draft_len,
            predict_,
            first_difference(plain_, tokens),
            sequence.stats().acceptance_rate(),
            sequence.stats().tokens_per_round()};
  }

 private:
  const Weights& weights_;
  Decoder decoder_;
  const Prompt& prompt_;
  const LosslessMode& mode_;
  const Drafter& drafter_;
  int predict_;
  const Model::Progress progress_;
  Sequence start_;  // after the prompt
  std::vector<TokenId> plain_;
};

}  // namespace

std::vector<LosslessMode> lossless_modes(const LosslessOptions& options) {
  DecodingOptions greedy;
  greedy.sampling.temperature = 0;
  greedy.draft_len = 0;
  DecodingOptions coupled;
  coupled.sampling.temperature = options.temperature;
  coupled.sampling.seed = options.seed;
  coupled.spec_sampling = SpecSampling::kCoupled;
  coupled.draft_len = 0;
  return {{"greedy", greedy}, {"coupled", coupled}};
}

std::optional<int> first_difference(std::span<const TokenId> one, std::span<const TokenId> other) {
  const auto [at, also] = std::ranges::mismatch(one, other);
  if (at == one.end() && also == other.end()) return std::nullopt;
  return static_cast<int>(at - one.begin());
}

void eval_lossless(const EvalModel& model, std::span<const Prompt> prompts,
                   const LosslessOptions& options, const ProgressCallback& progress,
                   std::vector<LosslessRow>& rows) {
  check(!options.drafters.empty() && !options.draft_lens.empty(), "there is something to compare");
  for (const Prompt& prompt : prompts) require_memory_for(model, prompt, options);
  const std::vector<LosslessMode> all_modes = lossless_modes(options);
  const std::size_t total =
      prompts.size() * all_modes.size() * options.drafters.size() * options.draft_lens.size();
  std::size_t done = 0;
  const auto report = [&](double part) {
    if (progress) progress(kStage, (static_cast<double>(done) + part) / total);
  };
  for (const Prompt& prompt : prompts) {
    for (const LosslessMode& mode : all_modes) {
      for (const Drafter& drafter : options.drafters) {
        Trial trial(model, prompt, mode, drafter, options.predict, report);
        for (const std::optional<int>& draft_len : options.draft_lens) {
          rows.push_back(trial.compare(draft_len));
          ++done;
        }
      }
    }
  }
}

}  // namespace quantspec
