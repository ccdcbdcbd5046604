#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/error.h"
#include "sampler/parameters.h"
#include "sampler/softmax.h"

namespace quantspec {
namespace {

bool more_probable(const Candidate& a, const Candidate& b) {
  return a.prob != b.prob ? a.prob > b.prob : a.id < b.id;
}
bool less_probable(const Candidate& a, const Candidate& b) { return more_probable(b, a); }

void penalize_repeats(const SamplingParams& params, std::span<const TokenId> history,
                      std::span<float> logits, std::vector<char>& seen) {
  if (params.repeat_last_n >= 0) {
    history = history.last(std::min<std::size_t>(params.repeat_last_n, history.size()));
  }
  seen.resize(logits.size());
  for (const TokenId id : history) {
    if (seen[id]) continue;
    seen[id] = 1;
    float& logit = logits[id];
    logit = logit > 0 ? logit / params.repeat_penalty : logit * params.repeat_penalty;
  }
  for (const TokenId id : history) seen[id] = 0;
}

// The k most probable, unordered, in one pass: `kept` grows to 2k before it is cut back to k, so
// that the whole vocabulary is never copied. REQUIRES: k >= 1.
void most_probable(std::span<const float> probs, std::size_t k, std::vector<Candidate>& kept) {
  kept.clear();
  kept.reserve(2 * k);
  const auto cut = [&] {
    std::ranges::nth_element(kept, kept.begin() + k - 1, more_probable);
    kept.resize(k);
  };
  float floor = 0;  // of the ids still to come, those up to `floor` are not among the k
  for (std::size_t i = 0; i < probs.size(); ++i) {
    if (probs[i] <= floor) continue;
    kept.push_back({probs[i], static_cast<TokenId>(i)});
    if (kept.size() == 2 * k) {
      cut();
      floor = kept.back().prob;
    }
  }
  if (kept.size() > k) cut();
}

// What top-p may keep: all tokens below the floor hold less than half of what it leaves out.
void top_p_candidates(std::span<const float> probs, float top_p, std::vector<Candidate>& kept) {
  const float floor = 0.5f * (1.0f - top_p) / static_cast<float>(probs.size());
  kept.resize(probs.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < probs.size(); ++i) {
    kept[count] = {probs[i], static_cast<TokenId>(i)};
    count += probs[i] > floor;  // no branch: nobody could predict it
  }
  kept.resize(count);
}

// Keeps the fewest most probable candidates that hold `share` of `mass`; a heap hands out only
// those that are needed in order.
void cut_to_share(std::vector<Candidate>& candidates, double share, double mass) {
  std::ranges::make_heap(candidates, less_probable);
  auto heap_end = candidates.end();
  for (double sum = 0; heap_end != candidates.begin() && sum < share * mass;) {
    std::ranges::pop_heap(candidates.begin(), heap_end, less_probable);
    sum += (--heap_end)->prob;
  }
  candidates.erase(candidates.begin(), heap_end);
}

double mass_of(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.prob;
  return sum;
}

// Leaves only what top-k and top-p keep. REQUIRES: one of them is on.
void keep_top(const SamplingParams& params, std::span<float> probs,
              std::vector<Candidate>& candidates) {
  const bool by_count = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < probs.size();
  if (by_count) {
    most_probable(probs, params.top_k, candidates);
  } else {
    top_p_candidates(probs, params.top_p, candidates);
  }
  if (params.top_p < 1) {
    cut_to_share(candidates, params.top_p, by_count ? mass_of(candidates) : 1.0);
  }
  std::ranges::fill(probs, 0.0f);
  for (const Candidate& candidate : candidates) probs[candidate.id] = candidate.prob;
}

// All that the distributions below, and the draws of draw.cc, go by.
static_assert(are_all_sampling_params<&SamplingParams::temperature, &SamplingParams::top_k,
                                      &SamplingParams::top_p, &SamplingParams::min_p,
                                      &SamplingParams::repeat_penalty,
                                      &SamplingParams::repeat_last_n, &SamplingParams::seed>());

}  // namespace

void SamplingParams::validate() const {
  for_each_sampling_param([&](const auto& param) {
    const auto value = this->*param.member;
    if (value >= param.low && value <= param.high) return;  // a NaN is not
    fail(ErrorKind::kInvalidRequest, "{} is {}; it must be {}", param.field, value, param.range);
  });
}

void to_probabilities(const SamplingParams& params, std::span<const TokenId> history,
                      std::span<float> row, SamplerScratch& scratch) {
  if (params.penalizes()) penalize_repeats(params, history, row, scratch.seen);
  if (params.greedy()) {
    const TokenId best = argmax(row);
    std::ranges::fill(row, 0.0f);
    row[best] = 1;
    return;
  }
  softmax(row, largest_logit(row), params.temperature);
  const bool by_count = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < row.size();
  if (!by_count && params.top_p >= 1 && params.min_p <= 0) return;
  if (by_count || params.top_p < 1) keep_top(params, row, scratch.candidates);
  if (params.min_p > 0) {
    const float floor = params.min_p * largest_weight(row);
    for (float& prob : row) prob = prob >= floor ? prob : 0.0f;
  }
  scale_weights(row, static_cast<float>(1.0 / sum_weights(row)));
}

}  // namespace quantspec
