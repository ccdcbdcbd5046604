#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/exponential.h"
#include "base/random.h"
#include "sampler/sampler.h"

namespace quantspec {
namespace {

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
