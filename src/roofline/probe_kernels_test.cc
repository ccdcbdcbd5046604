#include "roofline/probe_kernels.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "backend/backend.h"

namespace quantspec::roofline {
namespace {

TEST(ProbeKernels, SumAllWords) {
  std::vector<std::uint64_t> words(64 * 3);
  std::iota(words.begin(), words.end(), std::uint64_t{1} << 40);
  const std::uint64_t expected = std::accumulate(words.begin(), words.end(), std::uint64_t{0});
  for (const std::string& name : cpu_instruction_sets()) {
    EXPECT_EQ(choose_kernels(name).sum(words.data(), words.size()), expected) << name;
  }
}

// Every element of the product, and no more of them than the FLOPs say. Values are whole numbers
// and so exact.
TEST(ProbeKernels, MultiplyAsManyElementsAsTheyClaim) {
  for (const std::string& name : cpu_instruction_sets()) {
    const Kernels kernels = choose_kernels(name);
    Tile tile;
    for (int k = 0; k < kDepth; ++k) {
      for (int row = 0; row < kMaxRows; ++row) tile.a[k * kMaxRows + row] = k % 3 + row;
      for (int col = 0; col < kMaxCols; ++col) tile.b[k * kMaxCols + col] = k % 5 - col;
    }
    kernels.multiply(tile);
    kernels.multiply(tile);
    int computed = 0;
    for (int row = 0; row < kMaxRows; ++row) {
      for (int col = 0; col < kMaxCols; ++col) {
        float expected = 0;
        for (int k = 0; k < kDepth; ++k) expected += 2.0f * (k % 3 + row) * (k % 5 - col);
        const float actual = tile.c[row * kMaxCols + col];
        if (actual == 0 && expected != 0) continue;
        EXPECT_EQ(actual, expected) << name << " " << row << " " << col;
        ++computed;
      }
    }
    EXPECT_EQ(2.0 * computed * kDepth, kernels.flops) << name;
  }
}

TEST(ProbeKernels, KnowWhenATileIsDone) {
  for (const std::string& name : cpu_instruction_sets()) {
    Tile tile;
    EXPECT_TRUE(tile.is_done(0));
    for (int i = 0; i < 1000; ++i) choose_kernels(name).multiply(tile);
    EXPECT_TRUE(tile.is_done(1000));
    EXPECT_FALSE(tile.is_done(999));
  }
}

}  // namespace
}  // namespace quantspec::roofline
