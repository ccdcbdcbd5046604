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
  for (const int group : {32, 64, 128}) {
    for (const int cols : {48, 100, 128, 200, 512}) {
      Problem p(70, cols, cols);
      const Codes nearest = round_to_nearest(p.pool, p.view, {sliced_format(group)});
      const Codes better = gptq(p.pool, p.view, sliced_format(group), p.inputs, p.factor);
      const double before = output_error(p.pool, p.view, nearest.view(), p.inputs);
      const double after = output_error(p.pool, p.view, better.view(), p.inputs);
      EXPECT_GT(before, 1e-4);
      EXPECT_LT(after, (group == kFineGroup ? 0.75 : 0.6) * before)
          << cols << " inputs, groups of " << group;
    }
  }
}

// Inputs that know nothing of each other: nothing can be made up for, so each weight goes to the
// nearest of the group's values.
TEST(Gptq, IndependentInputsAreRoundedToNearest) {
  constexpr int kRows = 33, kCols = 200;
  for (const int group : {32, 64, 128}) {
    const WeightFormat format = sliced_format(group);
    Problem p(kRows, kCols, 7);
    std::vector<float> identity(kCols * kCols);
    for (int i = 0; i < kCols; ++i) identity[i * kCols + i] = 3.0f;
    Gram inputs(kCols);
    inputs.add(p.pool, identity.data(), kCols);
    inputs.complete();
    Codes codes = gptq(p.pool, p.view, format, inputs, inverse_factor(p.pool, inputs, 0.01f));
    for (int row = 0; row < kRows; ++row) {
      for (int c = 0; c < kCols; ++c) {
        const auto [scale, offset] = group_values(format, codes.row(row), c / group);
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
  const Codes codes = gptq(p.pool, p.view, sliced_format(128), p.inputs, p.factor);
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
  for (const int group : {32, 64}) {
    const WeightFormat format = sliced_format(group);
    const Codes a = gptq(p.pool, p.view, format, p.inputs, p.factor);
    const Codes b = gptq(one, p.view, format, p.inputs, inverse_factor(one, p.inputs, 0.01f));
    EXPECT_EQ(a.codes, b.codes);
    EXPECT_TRUE(a.scales == b.scales);
    EXPECT_EQ(a.sub_scales, b.sub_scales);
    EXPECT_EQ(a.sub_offsets, b.sub_offsets);
  }
}

// Groups of zeros, of one value, of positive, tiny and huge ones beside each other, whose
// parameters are multiples of one block's: values are as near as the block's steps allow.
TEST(Gptq, OddGroupsInABlockOfTwoLevels) {
  constexpr int kCols = 256;
  const WeightFormat format = sliced_format(kFineGroup);
  Problem p(8, kCols, 9);
  for (int row = 0; row < 8; ++row) {
    for (int c = 0; c < kCols; ++c) {
      float& w = p.weights[row * kCols + c];
      const int kind = (c / kFineGroup + row) % 8;
      if (kind == 0) w = 0.0f;
      if (kind == 1) w = 0.75f;
      if (kind == 2) w = 0.5f + 0.01f * static_cast<float>(c % 9);
      if (kind == 3) w = -0.3f;
      if (kind == 4) w = 1e-8f * static_cast<float>(c % 5);
      if (row == 7) w *= 3e4f;
    }
  }
  Codes codes = gptq(p.pool, p.view, format, p.inputs, p.factor);
  EXPECT_LT(output_error(p.pool, p.view, codes.view(), p.inputs), 0.02);
  for (int row = 0; row < 8; ++row) {
    for (int group = 0; group < format.groups(kCols); ++group) {
      const auto [scale, offset] = group_values(format, codes.row(row), group);
      EXPECT_TRUE(std::isfinite(scale) && std::isfinite(offset));
    }
  }
  std::ranges::fill(p.weights, 0.0f);
  codes = gptq(p.pool, p.view, format, p.inputs, p.factor);
  std::vector<float> decoded(kCols);
  for (int row = 0; row < 8; ++row) {
    decode_row(format, kCols, codes.row(row), true, decoded.data());
    EXPECT_EQ(decoded, std::vector<float>(kCols, 0.0f));
  }
}

TEST(RoundToNearest, IsTheCodec) {
  constexpr int kCols = 300;
  Problem p(5, kCols, 11);
  for (const int group : {32, 64, 128}) {
    const WeightFormat format = sliced_format(group);
    const Codes codes = round_to_nearest(p.pool, p.view, {format});
    const CodedMatrix view = codes.view();
    RowBuffer expected(format, kCols), row(format, kCols);
    for (int r = 0; r < 5; ++r) {
      encode_row(format, kCols, &p.weights[r * kCols], expected.view());
      view.read(r, row.view());
      EXPECT_EQ(row.codes, expected.codes);
      EXPECT_EQ(row.scales, expected.scales);
      EXPECT_EQ(row.sub_scales, expected.sub_scales);
      EXPECT_EQ(row.sub_offsets, expected.sub_offsets);
    }
  }
}

}  // namespace
}  // namespace quantspec
