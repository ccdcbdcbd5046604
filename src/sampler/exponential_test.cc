#include "sampler/exponential.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "sampler/sampler.h"

namespace quantspec {
namespace {

TEST(Exponential, IsAccurateOverAllWords) {
  std::vector<std::uint32_t> words = {0, 1, 2, 0x4AFB0CCC, 0x4AFB0CCD, ~0u, ~0u - 1, 1u << 31};
  for (std::uint64_t word = 0; word < 1ull << 32; word += 9973) {
    words.push_back(static_cast<std::uint32_t>(word));
  }
  for (std::uint32_t word : words) {
    const double exact = -std::log1p(-(word + 0.5) * 0x1p-32);
    ASSERT_NEAR(exponential(word), exact, 3e-7 * exact) << word;
    ASSERT_GE(exponential(word), fine_unit(word)) << word;  // what the race relies on
  }
}

// The bits that another implementation (a GPU) must reproduce.
TEST(Exponential, HasTheseBits) {
  EXPECT_EQ(exponential(0), 0x1p-33f);
  std::uint32_t mixed = 0;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) {
    const float value = exponential(i * 2654435761u);
    mixed = mixed * 31 + std::bit_cast<std::uint32_t>(value);
  }
  EXPECT_EQ(mixed, 2230864793u);
}

// sample_coupled() skips most logarithms; this evaluates them all.
TEST(SampleCoupled, EqualsTheRaceInFull) {
  const CounterRng rng(21);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> probs(1 + rng.bits(trial, RandomStream::kDraft) % 500);
    for (std::size_t i = 0; i < probs.size(); ++i) {
      const auto word = rng.bits(trial, RandomStream::kAccept, static_cast<std::uint32_t>(i));
      probs[i] = word % 3 == 0 ? 0.0f : std::exp(-static_cast<float>(word % 30));
    }
    probs[0] += 1e-3f;
    TokenId best = -1;
    float best_time = 0;
    for (std::size_t i = 0; i < probs.size(); ++i) {
      if (probs[i] == 0) continue;
      const auto index = static_cast<std::uint32_t>(i);
      const float time = exponential(rng.bits(trial, RandomStream::kSample, index)) / probs[i];
      if (best < 0 || time < best_time) {
        best = static_cast<TokenId>(i);
        best_time = time;
      }
    }
    ASSERT_EQ(sample_coupled(probs, rng, trial), best) << trial;
  }
}

}  // namespace
}  // namespace quantspec
