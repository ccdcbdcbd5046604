#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "sampler/parameters.h"
#include "sampler/softmax.h"

namespace quantspec {
namespace {

bool more_probable(const Candidate& a, const Candidate& b) {
  return a.prob != b.prob ? a.prob > b.prob : a.id < b.id;
}
bool less_probable(const Candidate& a, const Candidate& b) { return more_probable(b, a); }

// Calls visit(logit) for each distinct token of `tokens`, once.
void for_each_distinct(std::span<const TokenId> tokens, std::span<float> logits,
                       std::vector<char>& seen, const auto& visit) {
  seen.resize(logits.size());
  for (const TokenId id : tokens) {
    if (!std::exchange(seen[id], 1)) visit(logits[id]);
  }
  for (const TokenId id : tokens) seen[id] = 0;
}

// In this order, for all backends: the bits of a logit depend on it.
void edit_logits(const SamplingParams& params, const SamplerInput& input, std::span<float> logits,
                 std::vector<char>& seen) {
  for (const LogitBias& bias : input.biases) logits[bias.id] += bias.add;
  if (params.penalizes_repeats()) {
    std::span<const TokenId> last = input.history;
    if (params.repeat_last_n >= 0) {
      last = last.last(std::min<std::size_t>(params.repeat_last_n, last.size()));
    }
    for_each_distinct(last, logits, seen, [&](float& logit) {
      logit = logit > 0 ? logit / params.repeat_penalty : logit * params.repeat_penalty;
    });
  }
  if (params.penalizes_counts()) {
    const std::span<const TokenId> chosen = input.history.last(input.chosen);
    for_each_distinct(chosen, logits, seen,
                      [&](float& logit) { logit -= params.presence_penalty; });
    for (const TokenId id : chosen) logits[id] -= params.frequency_penalty;
  }
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
static_assert(are_all_sampling_params<
              &SamplingParams::temperature, &SamplingParams::top_k, &SamplingParams::top_p,
              &SamplingParams::min_p, &SamplingParams::repeat_penalty,
              &SamplingParams::repeat_last_n, &SamplingParams::presence_penalty,
              &SamplingParams::frequency_penalty, &SamplingParams::seed>());

}  // namespace

void to_probabilities(const SamplingParams& params, const SamplerInput& input, std::span<float> row,
                      SamplerScratch& scratch) {
  edit_logits(params, input, row, scratch.seen);
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
