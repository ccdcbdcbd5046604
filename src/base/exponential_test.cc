#include "base/exponential.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

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

}  // namespace
}  // namespace quantspec
