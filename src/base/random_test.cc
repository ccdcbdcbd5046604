#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace quantspec {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Known answers of Random123 (tests/kat_vectors, philox4x32 10).
TEST(Random, PhiloxGivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, WordsAreThoseOfTheirBlock) {
  const CounterRng rng(0x0123456789abcdefu);
  for (std::uint32_t index = 0; index < 16; ++index) {
    EXPECT_EQ(rng.bits(77, RandomStream::kDraft, index),
              rng.block(77, RandomStream::kDraft, index / 4)[index % 4]);
  }
}

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<std::uint32_t> draws;
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1} << 32}) {
    for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 32}) {
      for (const auto stream : {RandomStream::kSample, RandomStream::kDraft, RandomStream::kAccept,
                                RandomStream::kResidual}) {
        for (const std::uint32_t index : {0u, 1u, 4u, 1u << 30}) {
          draws.insert(CounterRng(seed).bits(position, stream, index));
        }
      }
    }
  }
  EXPECT_EQ(draws.size(), 3u * 3 * 4 * 4);
}

TEST(Random, UniformNeverReachesItsEnds) {
  EXPECT_GT(CounterRng::to_unit(0), 0.0f);
  EXPECT_LT(CounterRng::to_unit(~0u), 1.0f);
  EXPECT_EQ(CounterRng::to_unit(0), 0x1p-24f);
  EXPECT_EQ(1.0f - CounterRng::to_unit(~0u), 0x1p-24f);
}

TEST(Random, UniformIsUniform) {
  constexpr int kDraws = 100000, kCells = 20;
  const CounterRng rng(7);
  std::array<int, kCells> counts{};
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const float x = rng.uniform(i, RandomStream::kSample);
    sum += x;
    ++counts[static_cast<int>(x * kCells)];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));  // five standard deviations
  double chi_square = 0;
  for (const int count : counts)
    chi_square += std::pow(count - kDraws / kCells, 2) * kCells / kDraws;
  EXPECT_LT(chi_square, 43.8);  // 19 degrees of freedom, p = 0.001; the seed is fixed
}

}  // namespace
}  // namespace quantspec
