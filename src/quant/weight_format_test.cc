#include "quant/weight_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "quant/encode_row.h"

namespace quantspec {
namespace {

std::vector<float> decoded(const WeightFormat& format, RowBuffer& row, bool upper_only = false) {
  std::vector<float> out(row.codes.size());
  decode_row(format, static_cast<int>(out.size()), row.view(), upper_only, out.data());
  return out;
}

// The code of quant.h is one of these formats.
TEST(WeightFormat, SlicedFormatIsTheCodeOfQuant) {
  for (const int group : {64, 128}) {
    const WeightFormat format = sliced_format(group);
    constexpr int kCols = 200;  // the last group is not whole
    std::vector<float> x(kCols);
    for (int i = 0; i < kCols; ++i) x[i] = 0.01f * static_cast<float>(i * i % 97 - 50);
    RowBuffer row(format, kCols);
    encode_row(format, kCols, x.data(), row.view());
    const auto target = decoded(format, row), draft = decoded(format, row, true);
    for (int i = 0; i < kCols; ++i) {
      const GroupScale scale = row.scales[i / group];
      const float s = f16_to_f32(scale.scale), o = f16_to_f32(scale.offset);
      EXPECT_EQ(target[i], target_value(row.codes[i], s, o));
      EXPECT_EQ(draft[i], draft_value(row.codes[i], s, o));
    }
  }
}

// As many as llama.cpp's blocks have.
TEST(WeightFormat, BytesOfAWeightAreItsCodeAndItsShareOfScales) {
  const WeightBytes q5_0 = weight_bytes({.bits = 5, .group = 32, .block = 32, .zero = 16});
  EXPECT_DOUBLE_EQ(q5_0.target, 22.0 / 32);
  EXPECT_DOUBLE_EQ(q5_0.both, q5_0.target);
  EXPECT_DOUBLE_EQ(q5_0.upper, 18.0 / 32);
  EXPECT_DOUBLE_EQ(q5_0.kept_for_drafts, 0);
  EXPECT_DOUBLE_EQ(weight_bytes({.bits = 4, .group = 32, .block = 32, .has_offset = true}).target,
                   20.0 / 32);
  // Q6_K, of two levels, without offsets.
  EXPECT_DOUBLE_EQ(weight_bytes({.bits = 6, .group = 16, .block = 256, .zero = 32}).target,
                   210.0 / 256);
  EXPECT_DOUBLE_EQ(weight_bytes(dense_format(DType::kF32)).target, 4);
  EXPECT_DOUBLE_EQ(weight_bytes(dense_format(DType::kF32), 64).upper, 0.5 + 4.0 / 64);
  EXPECT_DOUBLE_EQ(weight_bytes(dense_format(DType::kF32)).kept_for_drafts, 0.53125);
}

TEST(WeightFormat, ZeroTakesTheOffsetsPlace) {
  const WeightFormat format = {.bits = 5, .group = 32, .block = 32, .zero = 16};
  RowBuffer row(format, 32);
  row.scales[0] = {f32_to_f16(-0.5f), 0};
  for (int i = 0; i < 32; ++i) row.codes[i] = static_cast<std::uint8_t>(i);
  const auto target = decoded(format, row), draft = decoded(format, row, true);
  EXPECT_EQ(target[0], 8.0f);
  EXPECT_EQ(target[31], -7.5f);
  EXPECT_TRUE(std::signbit(target[16]));  // as ggml's own product of -0.5 and 0
  EXPECT_EQ(draft[0], 7.75f);             // codes 0 and 1 share their upper bits
  EXPECT_EQ(draft[1], 7.75f);
}

TEST(WeightFormat, GroupsOfABlockHaveIntegersOfTheirOwn) {
  const WeightFormat format = {.bits = 6, .group = 16, .block = 256, .has_offset = true, .zero = 0};
  RowBuffer row(format, 272);  // a block and a group
  ASSERT_EQ(row.scales.size(), 2u);
  ASSERT_EQ(row.sub_scales.size(), 17u);
  row.scales[0] = {f32_to_f16(0.25f), f32_to_f16(0.5f)};
  row.scales[1] = {f32_to_f16(2.0f), f32_to_f16(1.0f)};
  for (int g = 0; g < 17; ++g) {
    row.sub_scales[g] = static_cast<std::int8_t>(g - 8);
    row.sub_offsets[g] = static_cast<std::uint8_t>(200 + g);
  }
  for (int i = 0; i < 272; ++i) row.codes[i] = static_cast<std::uint8_t>(i % 64);
  const auto target = decoded(format, row);
  EXPECT_EQ(target[17], 0.25f * -7 * 17 - 0.5f * 201);
  EXPECT_EQ(target[271], 2.0f * 8 * 15 - 216.0f);
  EXPECT_EQ(decoded(format, row, true)[17], 0.25f * -7 * 17.5f - 0.5f * 201);
}

TEST(WeightFormat, TablesAndExponents) {
  WeightFormat format = {.bits = 4, .group = 32, .block = 32, .table = CodeTable::kIq4};
  RowBuffer row(format, 32);
  row.scales[0] = {f32_to_f16(0.5f), 0};
  row.codes[0] = 0;
  row.codes[1] = 15;
  EXPECT_EQ(decoded(format, row)[0], -63.5f);
  EXPECT_EQ(decoded(format, row, true)[1], 56.5f);  // four bits are all there are
  format.table = CodeTable::kFp4;
  format.exponent = -20;
  EXPECT_EQ(decoded(format, row)[1], -0x1.8p-18f);
}

}  // namespace
}  // namespace quantspec
