#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace quantspec {
namespace {

constexpr int kAllHalves = 65536;

bool is_half_nan(int bits) { return (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0; }

// The value of finite fp16 bits straight from the definition, in double.
double half_value(int bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Dtype, EveryHalfHasTheValueOfItsDefinition) {
  for (int bits = 0; bits < kAllHalves; ++bits) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(bits));
    if ((bits & 0x7c00) == 0x7c00) {
      ASSERT_EQ(std::isnan(value), is_half_nan(bits)) << bits;
      ASSERT_EQ(std::isinf(value), !is_half_nan(bits)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), half_value(bits)) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Dtype, EveryHalfSurvivesARoundTrip) {
  for (int bits = 0; bits < kAllHalves; ++bits) {
    const std::uint16_t back = f32_to_f16(f16_to_f32(static_cast<std::uint16_t>(bits)));
    if (is_half_nan(bits)) {
      ASSERT_TRUE(is_half_nan(back)) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

// Between every two neighbours: the midpoint goes to the even one, the floats beside it to the
// nearer. That is all of round-to-nearest-even, subnormals and overflow included.
TEST(Dtype, RoundingToHalfIsToTheNearestAndTiesToEven) {
  constexpr float kUp = std::numeric_limits<float>::infinity();
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const double low = half_value(bits);
    const double high = bits == 0x7bff ? 65536.0 : half_value(bits + 1);  // infinity rounds as 2^16
    const auto middle = static_cast<float>((low + high) / 2);             // exact in fp32
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (const int sign : {0, 0x8000}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(f32_to_f16(s * middle), sign | even) << bits;
      ASSERT_EQ(f32_to_f16(s * std::nextafter(middle, 0.0f)), sign | bits) << bits;
      ASSERT_EQ(f32_to_f16(s * std::nextafter(middle, kUp)), sign | (bits + 1)) << bits;
    }
  }
}

TEST(Dtype, HalfOfExtremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(f32_to_f16(-kInfinity), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_TRUE(is_half_nan(f32_to_f16(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Dtype, Bfloat16IsTheUpperHalfOfAFloat) {
  for (int bits = 0; bits < kAllHalves; ++bits) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(bits));
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    ASSERT_EQ(word, static_cast<std::uint32_t>(bits) << 16);
  }
}

TEST(Dtype, LoadsElementsOfUnalignedArrays) {
  unsigned char bytes[13] = {};
  const float floats[] = {1.5f, -2.25f, 3e30f};
  std::memcpy(bytes + 1, floats, sizeof(floats));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(load_f32(bytes + 1, DType::kF32, i), floats[i]);
  const std::uint16_t halves[] = {0x3e00, 0xc080};  // 1.5, -2.25
  std::memcpy(bytes + 1, halves, sizeof(halves));
  EXPECT_EQ(load_f32(bytes + 1, DType::kF16, 0), 1.5f);
  EXPECT_EQ(load_f32(bytes + 1, DType::kF16, 1), -2.25f);
  const std::uint16_t brains[] = {0x3fc0, 0xc010};
  std::memcpy(bytes + 1, brains, sizeof(brains));
  EXPECT_EQ(load_f32(bytes + 1, DType::kBF16, 0), 1.5f);
  EXPECT_EQ(load_f32(bytes + 1, DType::kBF16, 1), -2.25f);
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kF32), 4u);
  EXPECT_EQ(size_of(DType::kF16), 2u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(name_of(DType::kBF16), "bf16");
}

}  // namespace
}  // namespace quantspec
