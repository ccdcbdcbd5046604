#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "base/error.h"
#include "sampler/exponential.h"
#include "sampler/sampler.h"
#include "sampler/softmax.h"

namespace quantspec {
namespace {

// The race so far. A token's time is E / prob, and E >= v: most tokens are ruled out by their
// random word, or by their probability alone, without a logarithm.
class Race {
 public:
  void enter(std::size_t token, float prob, std::uint32_t word) {
    if (!could_win(prob, fine_unit(word))) return;
    const float time = exponential(word) / prob;
    if (time < best_time_ || (time == best_time_ && token < winner_)) {
      best_time_ = time;
      winner_ = token;
    }
  }
  // Whether E >= v leaves a chance; errs by rounding on the safe side. False for prob 0.
  bool could_win(float prob, float v) const { return v < best_time_ * (prob * 1.00001f); }
  std::size_t winner() const { return winner_; }

 private:
  float best_time_ = std::numeric_limits<float>::max();
  std::size_t winner_ = 0;
};

constexpr float kSmallestUnit = 0x1p-33f;  // fine_unit(0)
constexpr std::size_t kRaceChunk = 64;     // tokens whose random words are computed together
constexpr std::size_t kChunk = 256;        // weights that are summed before they are looked into

}  // namespace

TokenId argmax(std::span<const float> logits) {
  const float max = largest_logit(logits);
  return static_cast<TokenId>(std::ranges::find(logits, max) - logits.begin());
}

TokenId sample(std::span<const float> weights, float uniform) {
  double left = uniform * sum_weights(weights);
  // The chunk that the draw falls into; the last with any weight if rounding leads past the end.
  std::span<const float> chosen;
  for (std::size_t begin = 0; begin < weights.size(); begin += kChunk) {
    const auto chunk = weights.subspan(begin, std::min(kChunk, weights.size() - begin));
    const double sum = sum_weights(chunk);
    if (!(sum > 0)) continue;
    chosen = chunk;
    if (left < sum) break;
    left -= sum;
  }
  check(!chosen.empty(), "sample() has a positive weight to choose");
  const float* token = nullptr;
  for (const float& weight : chosen) {
    if (weight <= 0) continue;
    token = &weight;
    if (left < weight) break;
    left -= weight;
  }
  return static_cast<TokenId>(token - weights.data());
}

TokenId sample_coupled(std::span<const float> probs, const CounterRng& rng, std::int64_t position) {
  Race race;
  // The most probable token first: it is likely to win, and then rules out most others.
  const auto favourite =
      static_cast<std::size_t>(std::ranges::find(probs, largest_weight(probs)) - probs.begin());
  race.enter(favourite, probs[favourite],
             rng.bits(position, RandomStream::kSample, static_cast<std::uint32_t>(favourite)));
  for (std::size_t begin = 0; begin < probs.size(); begin += kRaceChunk) {
    const auto chunk = probs.subspan(begin, std::min(kRaceChunk, probs.size() - begin));
    if (!race.could_win(largest_weight(chunk), kSmallestUnit)) continue;
    std::array<std::uint32_t, kRaceChunk> words;
    for (std::size_t i = 0; i < kRaceChunk; i += 4) {
      const auto block_index = static_cast<std::uint32_t>((begin + i) / 4);
      std::ranges::copy(rng.block(position, RandomStream::kSample, block_index), &words[i]);
    }
    for (std::size_t i = 0; i < chunk.size(); ++i) race.enter(begin + i, chunk[i], words[i]);
  }
  check(probs[race.winner()] > 0, "sample_coupled() has a positive probability to choose");
  return static_cast<TokenId>(race.winner());
}

}  // namespace quantspec
