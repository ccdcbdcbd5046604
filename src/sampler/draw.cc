#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "base/error.h"
#include "base/exponential.h"
#include "sampler/sampler.h"
#include "sampler/softmax.h"
#include "sampler/vectorize.h"

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
constexpr std::size_t kRaceBand = 64;      // tokens whose random words are computed together
constexpr std::size_t kBand = 256;         // weights that are summed before they are looked into

using RaceWords = std::array<std::uint32_t, kRaceBand>;

// Those of the tokens from `first` on.
void draw_words(const CounterRng& rng, std::int64_t position, std::size_t first, RaceWords& words) {
  vectorized([&] {
    for (std::size_t i = 0; i < kRaceBand; i += 4) {
      const auto four =
          rng.block(position, RandomStream::kSample, static_cast<std::uint32_t>((first + i) / 4));
      for (std::size_t j = 0; j < 4; ++j) words[i + j] = four[j];
    }
  });
}

// Whether Race::could_win() of one of them, which is rare, before they are entered one by one.
bool any_could_win(Race race, std::span<const float> probs, const RaceWords& words) {
  return vectorized([=, &words] {
    std::uint32_t any = 0;
    for (std::size_t i = 0; i < probs.size(); ++i) {
      any |= race.could_win(probs[i], fine_unit(words[i])) ? 1u : 0u;
    }
    return any != 0;
  });
}

// Inverse CDF of weight(i), i < size, which add up to `sum`.
template <typename Weight>
TokenId draw(std::size_t size, const Weight& weight, double sum, float uniform) {
  double left = uniform * sum;
  // The band that the draw falls into; the last with any weight if rounding leads past the end.
  std::size_t chosen = size;
  for (std::size_t begin = 0; begin < size; begin += kBand) {
    const double band =
        sum_of(std::min(kBand, size - begin), [&](std::size_t i) { return weight(begin + i); });
    if (!(band > 0)) continue;
    chosen = begin;
    if (left < band) break;
    left -= band;
  }
  check(chosen < size, "a draw has a positive weight to choose");
  std::size_t token = chosen;
  for (std::size_t i = chosen; i < std::min(chosen + kBand, size); ++i) {
    if (weight(i) <= 0) continue;
    token = i;
    if (left < weight(i)) break;
    left -= weight(i);
  }
  return static_cast<TokenId>(token);
}

}  // namespace

TokenId argmax(std::span<const float> logits) {
  return static_cast<TokenId>(index_of(logits, largest_logit(logits)));
}

TokenId sample(std::span<const float> weights, float uniform) {
  const auto weight = [&](std::size_t i) { return weights[i]; };
  return draw(weights.size(), weight, sum_of(weights.size(), weight), uniform);
}

TokenId sample_excess(std::span<const float> probs, std::span<const float> others, float uniform) {
  const auto excess = [&](std::size_t i) {
    const float more = probs[i] - others[i];
    return more > 0 ? more : 0.0f;
  };
  const double sum = sum_of(probs.size(), excess);
  return sum > 0 ? draw(probs.size(), excess, sum, uniform) : sample(probs, uniform);
}

TokenId sample_coupled(std::span<const float> probs, const CounterRng& rng, std::int64_t position) {
  Race race;
  // The most probable token first: it is likely to win, and then rules out most others.
  const std::size_t favourite = index_of(probs, largest_weight(probs));
  race.enter(favourite, probs[favourite],
             rng.bits(position, RandomStream::kSample, static_cast<std::uint32_t>(favourite)));
  for (std::size_t begin = 0; begin < probs.size(); begin += kRaceBand) {
    const auto band = probs.subspan(begin, std::min(kRaceBand, probs.size() - begin));
    if (!race.could_win(largest_weight(band), kSmallestUnit)) continue;
    RaceWords words;
    draw_words(rng, position, begin, words);
    if (!any_could_win(race, band, words)) continue;
    for (std::size_t i = 0; i < band.size(); ++i) race.enter(begin + i, band[i], words[i]);
  }
  check(probs[race.winner()] > 0, "sample_coupled() has a positive probability to choose");
  return static_cast<TokenId>(race.winner());
}

}  // namespace quantspec
