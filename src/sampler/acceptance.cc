#include "sampler/acceptance.h"

#include <algorithm>

#include "base/error.h"
#include "sampler/sampler.h"

namespace quantspec {
namespace {

// Accepts with probability min(1, target / draft). A token that the target rules out never passes,
// one that it likes at least as well as the draft always does: uniform is neither 0 nor 1, and the
// product is exact in double.
bool passes(float draft_prob, float target_prob, float uniform) {
  return static_cast<double>(uniform) * draft_prob < target_prob;
}

// Algorithm 1 of arXiv:2211.17192 (Leviathan et al.), arXiv:2302.01318 (Chen et al.).
// NOTE: positions after a rejection are drafted again with the same random words. Their first use
// decided nothing that was kept, so the output's distribution is exact.
Acceptance accept_rejection(ProbsView draft_probs, ProbsView target_probs,
                            std::span<const TokenId> drafted, const CounterRng& rng,
                            std::int64_t first_position) {
  const int draft_len = static_cast<int>(drafted.size());
  for (int i = 0; i < draft_len; ++i) {
    const std::int64_t position = first_position + i;
    const float draft_prob = draft_probs.row(i)[drafted[i]];
    check(draft_prob > 0, "a drafted token comes from the draft's distribution");
    if (!passes(draft_prob, target_probs.row(i)[drafted[i]],
                rng.uniform(position, RandomStream::kAccept))) {
      // From what the target has and the draft proposed too little. NOTE: nothing is left when the
      // two are equal but for the rounding of their sums (the rejection was then an event of
      // probability 1e-7), and the target itself is as good.
      return {i, sample_excess(target_probs.row(i), draft_probs.row(i),
                               rng.uniform(position, RandomStream::kResidual))};
    }
  }
  return {draft_len, sample(target_probs.row(draft_len),
                            rng.uniform(first_position + draft_len, RandomStream::kSample))};
}

Acceptance accept_coupled(ProbsView target_probs, std::span<const TokenId> drafted,
                          const CounterRng& rng, std::int64_t first_position) {
  for (int i = 0;; ++i) {
    const TokenId choice = sample_coupled(target_probs.row(i), rng, first_position + i);
    if (i == static_cast<int>(drafted.size()) || choice != drafted[i]) return {i, choice};
  }
}

}  // namespace

TokenId draft_token(SpecSampling mode, std::span<const float> draft_probs, const CounterRng& rng,
                    std::int64_t position) {
  return mode == SpecSampling::kCoupled
             ? sample_coupled(draft_probs, rng, position)
             : sample(draft_probs, rng.uniform(position, RandomStream::kDraft));
}

Acceptance accept(SpecSampling mode, ProbsView draft_probs, ProbsView target_probs,
                  std::span<const TokenId> drafted, const CounterRng& rng,
                  std::int64_t first_position) {
  const int draft_len = static_cast<int>(drafted.size());
  check(target_probs.rows == draft_len + 1, "the target has a row for every token of the round");
  if (mode == SpecSampling::kCoupled) {
    return accept_coupled(target_probs, drafted, rng, first_position);
  }
  check(draft_probs.rows == draft_len, "the draft has a row for every drafted token");
  return accept_rejection(draft_probs, target_probs, drafted, rng, first_position);
}

Acceptance accept_matching(std::span<const TokenId> drafted,
                           std::span<const TokenId> target_choice) {
  check(target_choice.size() == drafted.size() + 1,
        "the target chooses a token for every position of the round");
  const auto [choice, token] = std::ranges::mismatch(target_choice, drafted);
  return {static_cast<int>(token - drafted.begin()), *choice};
}

}  // namespace quantspec
