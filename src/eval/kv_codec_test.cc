#include "eval/kv_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/dtype.h"

namespace quantspec {
namespace {

constexpr KvShape kShape{1, 1, 16, 32};
constexpr std::size_t kSize = 32 * 16;

KvCodec paper(KvRead read, GroupAxis keys = GroupAxis::kChannel,
              GroupAxis values = GroupAxis::kToken) {
  return {KvCodec::Quantizer::kPaper, read, keys, values};
}

std::vector<float> wavy(float phase) {
  std::vector<float> x(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    x[i] = std::sin(0.7f * static_cast<float>(i) + phase) * (1 + 0.1f * static_cast<float>(i % 16));
  }
  return x;
}

// Channel 0 of the keys has extremes 0 and 15, so that s = 1 and min = 0, both exact in fp16.
TEST(KvCodec, ThePapersFormulaByHand) {
  std::vector<float> keys(kSize, 0.0f), values(kSize, 0.0f);
  const float x[] = {0, 15, 3.2f, 3.5f, 4.5f, 7.97f, 2.25f};
  for (std::size_t t = 0; t < std::size(x); ++t) keys[t * 16] = x[t];
  std::vector<float> upper = keys, both = keys, unused = values;
  quantize_and_read(paper(KvRead::kUpper), kShape, upper.data(), unused.data());
  quantize_and_read(paper(KvRead::kBoth), kShape, both.data(), values.data());
  // Half to even: 3.5 -> 4, 4.5 -> 4.
  const float expected_upper[] = {0, 15, 3, 4, 4, 8, 2};
  // l = round(16 (x - u)): 3, -8, 8 clamped to 7, round(-0.48) = 0, 4.
  const float expected_both[] = {0, 15, 3 + 3 / 16.0f, 3.5f, 4 + 7 / 16.0f, 8, 2.25f};
  for (std::size_t t = 0; t < std::size(x); ++t) {
    EXPECT_EQ(upper[t * 16], expected_upper[t]) << t;
    EXPECT_EQ(both[t * 16], expected_both[t]) << t;
  }
}

TEST(KvCodec, ThePapersConstantGroupKeepsItsValueInFp16) {
  std::vector<float> keys(kSize, 0.3f), values(kSize, -1.7f);
  quantize_and_read(paper(KvRead::kUpper), kShape, keys.data(), values.data());
  for (std::size_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(keys[i], f16_to_f32(f32_to_f16(0.3f)));
    ASSERT_EQ(values[i], f16_to_f32(f32_to_f16(-1.7f)));
  }
}

// A value far from the rest coarsens the step of its own group and of no other: that shows which
// elements are grouped.
void expect_only_group_changes(GroupAxis axis, bool of_keys) {
  std::vector<float> keys = wavy(0), values = wavy(1);
  const KvCodec codec = paper(KvRead::kUpper, of_keys ? axis : GroupAxis::kChannel,
                              of_keys ? GroupAxis::kToken : axis);
  std::vector<float> plain_keys = keys, plain_values = values;
  quantize_and_read(codec, kShape, plain_keys.data(), plain_values.data());
  constexpr int kToken = 5, kChannel = 3;
  (of_keys ? keys : values)[kToken * 16 + kChannel] = 1000;
  quantize_and_read(codec, kShape, keys.data(), values.data());
  const auto& changed = of_keys ? keys : values;
  const auto& plain = of_keys ? plain_keys : plain_values;
  int differing = 0;
  for (int t = 0; t < 32; ++t) {
    for (int c = 0; c < 16; ++c) {
      const bool in_group = axis == GroupAxis::kChannel ? c == kChannel : t == kToken;
      const bool differs = changed[t * 16 + c] != plain[t * 16 + c];
      EXPECT_TRUE(in_group || !differs) << t << ", " << c;
      differing += differs;
    }
  }
  EXPECT_GT(differing, (axis == GroupAxis::kChannel ? 32 : 16) / 2);
  EXPECT_EQ(of_keys ? values : keys, of_keys ? plain_values : plain_keys);
}

TEST(KvCodec, EveryAxisGroupsWhatItSays) {
  for (const bool of_keys : {true, false}) {
    expect_only_group_changes(GroupAxis::kChannel, of_keys);
    expect_only_group_changes(GroupAxis::kToken, of_keys);
  }
}

TEST(KvCodec, OursIsTheCachesFormat) {
  std::vector<float> keys = wavy(0), values = wavy(1);
  std::vector<std::byte> upper(kShape.upper_unit_bytes()), lower(kShape.lower_unit_bytes());
  encode_unit(kShape, keys.data(), values.data(), upper.data(), lower.data());
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    std::vector<float> k(kSize), v(kSize), by_codec_k = keys, by_codec_v = values;
    decode_unit(kShape, upper.data(), lower.data(), read, k.data(), v.data());
    quantize_and_read({KvCodec::Quantizer::kOurs, read}, kShape, by_codec_k.data(),
                      by_codec_v.data());
    EXPECT_EQ(by_codec_k, k);
    EXPECT_EQ(by_codec_v, v);
  }
}

// algorithm-wise: 255 levels against 16 * 15 with a clamped residual.
TEST(KvCodec, EightBitsOfOursAreFinerThanThePapers) {
  const std::vector<float> keys = wavy(0), values = wavy(1);
  const auto error = [&](const KvCodec& codec) {
    std::vector<float> k = keys, v = values;
    quantize_and_read(codec, kShape, k.data(), v.data());
    double sum = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      sum += (k[i] - keys[i]) * (k[i] - keys[i]) + (v[i] - values[i]) * (v[i] - values[i]);
    }
    return sum;
  };
  const double ours = error({}), papers = error(paper(KvRead::kBoth));
  EXPECT_LT(ours, papers);
  EXPECT_GT(ours, papers / 2);
  EXPECT_GT(error(paper(KvRead::kUpper)), 100 * papers);
}

}  // namespace
}  // namespace quantspec
