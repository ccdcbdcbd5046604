// From logits to a token: the distribution that the sampling parameters define, and draws from it.
//
// A token is drawn in two steps, so that draft and target go through the same transform before
// their distributions are compared (accept in speculative/): to_probabilities() turns a row of
// logits into the distribution, and sample() or sample_coupled() draws from it. Greedy decoding is
// the same path: temperature 0 gives a distribution with all its mass on one token.
//
// All functions are pure and thread-safe. None allocates, but for what to_probabilities() works in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/token.h"
#include "sampler/sampling_params.h"

namespace quantspec {

// A token that top-k or top-p may keep.
struct Candidate {
  float prob;
  TokenId id;
};

// What to_probabilities() works in. The first call makes it as large as any call with the same
// parameters and vocabulary needs: who keeps one allocates once. Its content means nothing.
struct SamplerScratch {
  std::vector<Candidate> candidates;
  std::vector<char> seen;  // [vocab_size], 0 between calls
};

// What the distribution of a token depends on beside its logits and the parameters.
struct SamplerInput {
  std::span<const TokenId> history = {};  // all tokens before it
  std::size_t chosen = 0;  // of them, how many of the last were chosen; a prompt's are those before
  std::span<const LogitBias> biases = {};  // of different tokens, but for such of -infinity
};

// Turns one row of logits, [vocab_size], into the distribution of the next token, in place:
//   biases          are added
//   repeat penalty  each distinct token among the last repeat_last_n of `history` has its logit
//                   divided by the penalty if positive, multiplied by it if negative (CTRL,
//                   arXiv:1909.05858, as in Hugging Face's generate)
//   presence and    each distinct token that was chosen has its logit lowered by the one, and by
//   frequency       the other each time that it was, as in OpenAI's API
//   temperature     logits / temperature, softmax
//   top-k           the k most probable tokens
//   top-p           the fewest most probable of those that hold a share top_p of their mass
//   min-p           those with at least min_p times the largest probability
// and normalizes. Equal probabilities rank by id, lower first. Tokens that a step removes have
// probability exactly 0. Greedy gives 1 to argmax() of the penalized logits.
// A logit of -infinity is a token that cannot be chosen; a NaN, or an infinity, or nothing but
// -infinity throws Error(kCorruptFile): a broken checkpoint is what makes them. REQUIRES: params
// are valid; ids are < vocab_size.
void to_probabilities(const SamplingParams& params, const SamplerInput& input,
                      std::span<float> logits_then_probs, SamplerScratch& scratch);

// The id of the largest logit, the lowest on ties: all that greedy decoding without
// penalties and biases needs. Throws as to_probabilities() does.
TokenId argmax(std::span<const float> logits);

// Of a row of logits, which outlives it. Throws as to_probabilities() does.
class LogProbs {
 public:
  explicit LogProbs(std::span<const float> logits);
  float of(TokenId id) const;
  // Fills `likeliest`, the likeliest first, of equal ones that of the lower id.
  // REQUIRES: likeliest.size() <= vocab_size.
  void find(std::span<TokenLogProb> likeliest) const;

 private:
  std::span<const float> logits_;
  double log_sum_;  // of exp(logit)
};

// Inverse CDF in index order. `weights` need not be normalized. uniform in (0, 1). Never returns a
// token of weight 0. REQUIRES: weights are not negative, and one of them is positive.
TokenId sample(std::span<const float> weights, float uniform);

// The same from what `probs` has more than `others` of each token: max(probs - others, 0). Where
// nothing is left, which between distributions is their rounding, from `probs`.
TokenId sample_excess(std::span<const float> probs, std::span<const float> others, float uniform);

// Gumbel-max as an exponential race: argmin_i E_i / probs[i], E_i = -log(1 - v_i), with v_i from
// word i of (seed, position, kSample). Two distributions that are close choose the same token with
// high probability, because they share the noise: `coupled` sampling (section 3 of docs/design.md).
// A pure function of (probs, seed, position), defined in integer and unfused fp32 arithmetic so
// that a GPU can compute the same bits. REQUIRES: probs sum to about 1.
TokenId sample_coupled(std::span<const float> probs, const CounterRng& rng, std::int64_t position);

}  // namespace quantspec
