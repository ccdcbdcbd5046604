#include "prepare/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "prepare/test_support.h"

namespace quantspec {
namespace {

struct Problem {
  Problem(int rows, int cols, std::uint64_t seed)
      : weights(uniform_floats(std::size_t(rows) * cols, seed)),
        view(view_of(weights, rows, cols)),
        inputs(cols) {
    // Heavier tails than uniform ones, as weights have.
    for (float& w : weights) w = w * w * w;
    const std::vector<float> x = correlated_rows(4 * cols, cols, seed + 1);
    inputs.add(pool, x.data(), 4 * cols);
    inputs.complete();
    factor = inverse_factor(pool, inputs, 0.01f);
  }

  ThreadPool pool{2};
  std::vector<float> weights;
  Matrix view;
  Gram inputs;
  std::vector<float> factor;
};

TEST(Gptq, ErrsLessThanRounding) {
  for (const int group : {64, 128}) {
    for (const int cols : {48, 100, 128, 200, 512}) {
      Problem p(70, cols, cols);
      const Codes nearest = round_to_nearest(p.pool, p.view, group);
      const Codes better = gptq(p.pool, p.view, group, p.inputs, p.factor);
      const double before = output_error(p.pool, p.view, nearest.view(), p.inputs);
      const double after = output_error(p.pool, p.view, better.view(), p.inputs);
      EXPECT_GT(before, 1e-4);
      EXPECT_LT(after, 0.6 * before) << cols << " inputs, groups of " << group;
    }
  }
}

// Inputs that know nothing of each other: nothing can be made up for, so each weight goes to the
// nearest of the group's values.
TEST(Gptq, IndependentInputsAreRoundedToNearest) {
  constexpr int kRows = 33, kCols = 200;
  for (const int group : {64, 128}) {
    Problem p(kRows, kCols, 7);
    std::vector<float> identity(kCols * kCols);
    for (int i = 0; i < kCols; ++i) identity[i * kCols + i] = 3.0f;
    Gram inputs(kCols);
    inputs.add(p.pool, identity.data(), kCols);
    inputs.complete();
    const Codes codes = gptq(p.pool, p.view, group, inputs, inverse_factor(p.pool, inputs, 0.01f));
    for (int row = 0; row < kRows; ++row) {
      for (int c = 0; c < kCols; ++c) {
        const GroupScale stored = codes.scales[row * weight_groups(kCols, group) + c / group];
        const float scale = f16_to_f32(stored.scale), offset = f16_to_f32(stored.offset);
        const float w = p.weights[row * kCols + c];
        const std::uint8_t code = codes.codes[row * kCols + c];
        EXPECT_EQ(code % 16, 8);
        float nearest = std::abs(w - draft_value(0, scale, offset));
        for (int u = 1; u < 16; ++u) {
          nearest = std::min(nearest, std::abs(w - draft_value(16 * u, scale, offset)));
        }
        ASSERT_NEAR(std::abs(w - draft_value(code, scale, offset)), nearest, 1e-6);
      }
    }
  }
}

// A group of one value, of zeros, of tiny and of huge ones: no NaN, and no error beyond fp16's.
TEST(Gptq, OddGroupsKeepTheirValues) {
  constexpr int kCols = 128;
  Problem p(4, kCols, 9);
  for (int c = 0; c < kCols; ++c) {
    p.weights[c] = 0.75f;
    p.weights[kCols + c] = 0.0f;
    p.weights[2 * kCols + c] = 1e-8f * static_cast<float>(c % 5);
    p.weights[3 * kCols + c] = 3e4f * static_cast<float>(c % 3 - 1);
  }
  const Codes codes = gptq(p.pool, p.view, 128, p.inputs, p.factor);
  for (int row = 0; row < 4; ++row) {
    const float scale = f16_to_f32(codes.scales[row].scale);
    const float offset = f16_to_f32(codes.scales[row].offset);
    ASSERT_TRUE(std::isfinite(scale) && std::isfinite(offset));
    for (int c = 0; c < kCols; ++c) {
      const float value = draft_value(codes.codes[row * kCols + c], scale, offset);
      if (row < 2) {
        EXPECT_EQ(value, p.weights[row * kCols + c]);
      } else if (row == 2) {
        EXPECT_NEAR(value, p.weights[row * kCols + c], 1e-7);
      }
    }
  }
}

TEST(Gptq, ThreadsDoNotChangeCodes) {
  Problem p(200, 300, 3);
  ThreadPool one(1);
  const Codes a = gptq(p.pool, p.view, 64, p.inputs, p.factor);
  const Codes b = gptq(one, p.view, 64, p.inputs, inverse_factor(one, p.inputs, 0.01f));
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_TRUE(a.scales == b.scales);
}

TEST(RoundToNearest, IsTheCodec) {
  Problem p(5, 200, 11);
  for (const int group : {64, 128}) {
    const Codes codes = round_to_nearest(p.pool, p.view, group);
    const int groups = weight_groups(200, group);
    for (int row = 0; row < 5; ++row) {
      std::vector<std::uint8_t> expected(200);
      std::vector<GroupScale> scales(groups);
      encode_weight_row(&p.weights[row * 200], 200, expected.data(), scales.data(), group);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), &codes.codes[row * 200]));
      EXPECT_TRUE(std::equal(scales.begin(), scales.end(), &codes.scales[row * groups]));
    }
  }
}

}  // namespace
}  // namespace quantspec
