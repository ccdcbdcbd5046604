#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "eval/eval.h"

namespace quantspec {

namespace {

constexpr std::string_view kStage = "generating";

struct Mode {
  const char* name;
  DecodingOptions options;  // of plain decoding
};

std::vector<Mode> modes(const LosslessOptions& options) {
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

// `count` tokens after the prompt, the first of which prefill chose.
std::vector<TokenId> generate(Decoder& decoder, Sequence& sequence, std::size_t prompt, int count) {
  while (std::ssize(sequence.tokens()) < static_cast<std::ptrdiff_t>(prompt) + count) {
    const auto made = static_cast<int>(sequence.tokens().size() - prompt);
    decoder.step(sequence, count - made);
  }
  return {sequence.tokens().begin() + static_cast<std::ptrdiff_t>(prompt), sequence.tokens().end()};
}

// One prompt in one mode with one drafter.
class Trial {
 public:
  Trial(const EvalModel& model, const Prompt& prompt, const Mode& mode, const Drafter& drafter,
        int predict)
      : decoder_(model.model),
        prompt_(prompt),
        mode_(mode),
        drafter_(drafter),
        predict_(predict),
        start_(model.model, model.pool, static_cast<int>(prompt.tokens.size()) + predict,
               mode.options, kv_options(drafter.plans)) {
    decoder_.prefill(start_, prompt.tokens);
  }

  LosslessRow compare(std::optional<int> draft_len) {
    if (plain_.empty()) {
      Sequence plain = start_.fork(mode_.options);
      plain_ = generate(decoder_, plain, prompt_.tokens.size(), predict_);
    }
    DecodingOptions options = mode_.options;
    options.draft_len = draft_len;
    options.plans = drafter_.plans;
    Sequence sequence = start_.fork(options);
    const auto tokens = generate(decoder_, sequence, prompt_.tokens.size(), predict_);
    return {prompt_.name,
            mode_.name,
            drafter_.name,
            draft_len ? std::to_string(*draft_len) : "auto",
            predict_,
            first_difference(plain_, tokens),
            sequence.stats().acceptance_rate(),
            sequence.stats().tokens_per_round()};
  }

 private:
  Decoder decoder_;
  const Prompt& prompt_;
  const Mode& mode_;
  const Drafter& drafter_;
  int predict_;
  Sequence start_;  // after the prompt
  std::vector<TokenId> plain_;
};

}  // namespace

std::optional<int> first_difference(std::span<const TokenId> one, std::span<const TokenId> other) {
  const auto [at, also] = std::ranges::mismatch(one, other);
  if (at == one.end() && also == other.end()) return std::nullopt;
  return static_cast<int>(at - one.begin());
}

std::vector<LosslessRow> eval_lossless(const EvalModel& model, std::span<const Prompt> prompts,
                                       const LosslessOptions& options,
                                       const ProgressCallback& progress) {
  check(!options.drafters.empty() && !options.draft_lens.empty(), "there is something to compare");
  const std::vector<Mode> all_modes = modes(options);
  const std::size_t total =
      prompts.size() * all_modes.size() * options.drafters.size() * options.draft_lens.size();
  std::vector<LosslessRow> rows;
  for (const Prompt& prompt : prompts) {
    for (const Mode& mode : all_modes) {
      for (const Drafter& drafter : options.drafters) {
        Trial trial(model, prompt, mode, drafter, options.predict);
        for (const std::optional<int>& draft_len : options.draft_lens) {
          if (progress) progress(kStage, static_cast<double>(rows.size()) / total);
          rows.push_back(trial.compare(draft_len));
        }
      }
    }
  }
  if (progress) progress(kStage, 1);
  return rows;
}

}  // namespace quantspec
