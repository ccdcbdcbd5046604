#include "quant/encode_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace quantspec {
namespace {

constexpr WeightFormat kFormat = sliced_format(kFineGroup);

std::vector<float> normal_row(int cols, unsigned seed, float deviation = 0.02f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> row(static_cast<std::size_t>(cols));
  for (float& x : row) x = normal(random);
  return row;
}

struct Encoded {
  RowBuffer codes;
  std::vector<float> target, draft;
};
Encoded encoded(const std::vector<float>& row, const WeightFormat& format = kFormat) {
  const int cols = static_cast<int>(row.size());
  Encoded e{{format, cols}, std::vector<float>(row.size()), std::vector<float>(row.size())};
  encode_row(format, cols, row.data(), e.codes.view());
  decode_row(format, cols, e.codes.view(), false, e.target.data());
  decode_row(format, cols, e.codes.view(), true, e.draft.data());
  return e;
}

// Both planes err by half a code, the upper one by half a cell beside that.
void expect_near(const std::vector<float>& row, const char* what) {
  Encoded e = encoded(row);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto [scale, offset] =
        group_values(kFormat, e.codes.view(), static_cast<int>(i) / kFineGroup);
    const float rounding = 4e-7f * (std::abs(row[i]) + std::abs(offset));
    ASSERT_LE(std::abs(e.target[i] - row[i]), 0.501f * scale + rounding) << what << ", " << i;
    ASSERT_LE(std::abs(e.draft[i] - row[i]), 8.001f * scale + rounding) << what << ", " << i;
  }
}

TEST(EncodeRow, CodesReachEveryWeight) {
  for (const int cols : {1, 8, 31, 32, 33, 100, 256, 300, 512, 576, 1408}) {
    expect_near(normal_row(cols, cols), "normal");
    std::vector<float> row(static_cast<std::size_t>(cols), 0.0f);
    expect_near(row, "zeros");
    std::ranges::fill(row, 0.75f);
    expect_near(row, "all equal");
    std::ranges::fill(row, -0.3f);
    expect_near(row, "all equal, negative");
    row = normal_row(cols, cols);
    for (float& x : row) x = std::abs(x) + 0.1f;
    expect_near(row, "positive");
    for (float& x : row) x = -x;
    expect_near(row, "negative");
    for (int i = 0; i < cols; ++i) row[i] = i / 32 % 2 == 0 ? 1.0f + 0.01f * row[i] : row[i];
    expect_near(row, "a positive group beside a negative one");
    row = normal_row(cols, cols);
    row[cols / 2] = 30.0f;
    expect_near(row, "one outlier");
    expect_near(normal_row(cols, cols, 5000.0f), "huge");
  }
}

// The scale of a block is 1 at 127: weights this small have few steps, or none, but stay small.
TEST(EncodeRow, TinyWeightsStaySmall) {
  for (const float deviation : {1e-5f, 1e-8f, 1e-30f, 1e-42f}) {
    const std::vector<float> row = normal_row(512, 7, deviation);
    const Encoded e = encoded(row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      ASSERT_LE(std::abs(e.target[i] - row[i]), 0.1f * deviation + 3e-5f) << deviation;
    }
  }
}

TEST(EncodeRow, WhatIsNotFiniteStaysVisibleInItsBlock) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> row = normal_row(600, 3);
    row[300] = bad;
    const Encoded e = encoded(row);
    for (int i = 0; i < 600; ++i) {
      const bool same_block = i >= 256 && i < 512;
      ASSERT_EQ(std::isnan(e.target[i]), same_block) << i;
      ASSERT_EQ(std::isnan(e.draft[i]), same_block) << i;
    }
  }
}

TEST(EncodeRow, BeyondFp16IsClampedAndFinite) {
  std::vector<float> row = normal_row(256, 5);
  row[3] = 3e38f;
  row[9] = -3e38f;
  const Encoded e = encoded(row);
  for (int i = 0; i < 256; ++i) ASSERT_TRUE(std::isfinite(e.target[i]));
}

// A group's bytes depend on its block alone, so that rows can be read in any order and by anyone.
TEST(EncodeRow, BlocksDoNotSeeEachOther) {
  const std::vector<float> row = normal_row(1408, 11);
  Encoded whole = encoded(row);
  for (int first = 0; first < 1408; first += 256) {
    const int last = std::min(1408, first + 256);
    Encoded part = encoded({row.begin() + first, row.begin() + last});
    EXPECT_EQ(part.codes.scales[0], whole.codes.scales[first / 256]);
    EXPECT_TRUE(std::equal(part.codes.codes.begin(), part.codes.codes.end(),
                           whole.codes.codes.begin() + first));
    EXPECT_TRUE(std::equal(part.codes.sub_scales.begin(), part.codes.sub_scales.end(),
                           whole.codes.sub_scales.begin() + first / 32));
  }
}

double draft_error(const std::vector<float>& row, const WeightFormat& format) {
  const Encoded e = encoded(row, format);
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) sum += std::pow(double{e.draft[i]} - row[i], 2);
  return sum;
}

// Of one group: the best of a fine grid of scales and offsets, of any that spans most of it.
double least_error(const float* x, int count) {
  const auto [low, high] = std::minmax_element(x, x + count);
  double least = std::numeric_limits<double>::max();
  for (double share = 0.7; share <= 1.02; share += 0.01) {
    const double step = share * (*high - *low) / 15;
    for (double first = 0; first <= 1; first += 0.02) {
      const double origin = *low + first * (*high - *low - 15 * step);
      double sum = 0;
      for (int i = 0; i < count; ++i) {
        const double u = std::clamp(std::nearbyint((x[i] - origin) / step), 0.0, 15.0);
        sum += std::pow(origin + step * u - x[i], 2);
      }
      least = std::min(least, sum);
    }
  }
  return least;
}

TEST(EncodeRow, UpperPlaneErrsLittleMoreThanTheBestOfASearch) {
  double fitted = 0, best = 0;
  std::vector<float> all;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::vector<float> row = normal_row(256, seed);
    fitted += draft_error(row, kFormat);
    for (int g = 0; g < 8; ++g) best += least_error(&row[32 * g], 32);
    all.insert(all.end(), row.begin(), row.end());
  }
  EXPECT_LT(fitted, 1.15 * best);
  // And much less than what groups of 64 and 128 do, which span their range.
  EXPECT_LT(fitted, 0.75 * draft_error(all, sliced_format(64)));
  EXPECT_LT(fitted, 0.6 * draft_error(all, sliced_format(128)));
}

TEST(EncodeRow, OneLevelIsTheCodeOfQuantGroupByGroup) {
  for (const int group : {64, 128}) {
    for (const int cols : {1, 48, 127, 128, 129, 512, 1408, 2000}) {  // the last may be short
      const std::vector<float> row = normal_row(cols, 5);
      const Encoded e = encoded(row, sliced_format(group));
      for (int first = 0; first < cols; first += group) {
        const int count = std::min(group, cols - first);
        std::vector<std::uint8_t> codes(count);
        const GroupScale scale = quantize_group(&row[first], 1, count, codes.data(), 1);
        ASSERT_EQ(e.codes.scales[first / group], scale);
        ASSERT_TRUE(std::equal(codes.begin(), codes.end(), e.codes.codes.begin() + first));
      }
    }
  }
}

}  // namespace
}  // namespace quantspec
