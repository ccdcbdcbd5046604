#include "quant/quant.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"

namespace quantspec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kHalfMax = 65504.0f;

struct Group {
  std::vector<std::uint8_t> codes;
  GroupScale stored;
  float scale, offset;

  float target(std::size_t i) const { return target_value(codes[i], scale, offset); }
  float draft(std::size_t i) const { return draft_value(codes[i], scale, offset); }
};

Group quantized(const std::vector<float>& x) {
  Group group{std::vector<std::uint8_t>(x.size(), 0xaa), {}, 0, 0};
  group.stored = quantize_group(x.data(), 1, static_cast<int>(x.size()), group.codes.data(), 1);
  group.scale = f16_to_f32(group.stored.scale);
  group.offset = f16_to_f32(group.stored.offset);
  return group;
}

// Half the distance of fp16's neighbours at x: the most by which rounding moves it.
double half_ulp(double x) {
  const int exponent = std::max(std::ilogb(std::max(std::abs(x), 1e-30)), -14);
  return std::ldexp(1.0, exponent - 11);
}

std::vector<float> uniform_floats(int count, std::uint64_t seed, float low, float high) {
  std::vector<float> x(count);
  const CounterRng rng(seed);
  for (int i = 0; i < count; ++i) {
    x[i] = low + (high - low) * rng.uniform(i, RandomStream::kSample);
  }
  return x;
}

// A group of a random size, centre and spread, both over the sizes that keys and weights have.
std::vector<float> any_group() {
  const int count = *rc::gen::inRange(1, 257);
  const double spread = std::ldexp(1.0, *rc::gen::inRange(-6, 9));
  const double centre = spread * (*rc::gen::inRange(-1000, 1001)) / 10.0;
  return uniform_floats(count, *rc::gen::arbitrary<std::uint64_t>(), centre - spread,
                        centre + spread);
}

// --- one group -----------------------------------------------------------------------------------

// The scale's own rounding moves no code past the margin, so a target value is off by at most half
// a step; where the centre is so far from 0 that fp16 cannot place the offset to within the margin,
// by at most what rounding the offset costs. 1e-5 is for fp32 arithmetic.
RC_GTEST_PROP(QuantizeGroup, TargetIsWithinHalfAStep, ()) {
  const std::vector<float> x = any_group();
  const Group group = quantized(x);
  const double bound = std::max(group.scale / 2.0, half_ulp(group.offset)) + group.scale * 1e-3 +
                       std::abs(group.offset) * 1e-6;
  for (std::size_t i = 0; i < x.size(); ++i) RC_ASSERT(std::abs(group.target(i) - x[i]) <= bound);
}

RC_GTEST_PROP(QuantizeGroup, DraftIsWithinHalfACell, ()) {
  const std::vector<float> x = any_group();
  const Group group = quantized(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    RC_ASSERT(std::abs(group.draft(i) - group.target(i)) <=
              7.5 * group.scale + std::abs(group.offset) * 1e-6);
  }
}

RC_GTEST_PROP(QuantizeGroup, CodesKeepTheOrderOfTheValues, ()) {
  std::vector<float> x = any_group();
  std::sort(x.begin(), x.end());
  const Group group = quantized(x);
  RC_ASSERT(std::is_sorted(group.codes.begin(), group.codes.end()));
}

RC_GTEST_PROP(QuantizeGroup, DependsOnNothingButTheValues, ()) {
  const std::vector<float> x = any_group();
  const int count = static_cast<int>(x.size());
  std::vector<float> strided(x.size() * 3, kNan);
  std::vector<std::uint8_t> codes(x.size() * 2, 0xee);
  for (std::size_t i = 0; i < x.size(); ++i) strided[3 * i] = x[i];
  const GroupScale stored = quantize_group(strided.data(), 3, count, codes.data(), 2);
  const Group group = quantized(x);
  RC_ASSERT(stored == group.stored);
  for (std::size_t i = 0; i < x.size(); ++i) {
    RC_ASSERT(codes[2 * i] == group.codes[i]);
    RC_ASSERT(codes[2 * i + 1] == 0xee);
  }
}

TEST(QuantizeGroup, ExtremesLieAtTheMargin) {
  const Group group = quantized({-1.0f, 0.3f, 1.0f});
  EXPECT_EQ(group.codes.front(), kCodeMargin);
  EXPECT_EQ(group.codes.back(), 255 - kCodeMargin);
  EXPECT_EQ(group.stored.scale, f32_to_f16(2.0f / 245.0f));
}

TEST(QuantizeGroup, ExtremesLieNearTheCentreOfTheirDraftCell) {
  const Group group = quantized({-1.0f, 0.3f, 1.0f});
  EXPECT_NEAR(group.draft(0), -1.0f, 3 * group.scale);
  EXPECT_NEAR(group.draft(2), 1.0f, 3 * group.scale);
}

TEST(QuantizeGroup, ConstantHasScaleAndCodesZero) {
  for (const float x : {0.0f, -0.0f, 1.5f, -3.25f, 1024.0f, kHalfMax, -kHalfMax}) {
    const Group group = quantized(std::vector<float>(128, x));
    EXPECT_EQ(group.scale, 0.0f);
    EXPECT_EQ(std::count(group.codes.begin(), group.codes.end(), 0), 128);
    EXPECT_EQ(group.target(0), x);
    EXPECT_EQ(group.draft(0), x);
  }
}

TEST(QuantizeGroup, OneElementIsAConstant) {
  const Group group = quantized({0.1f});
  EXPECT_EQ(group.scale, 0.0f);
  EXPECT_EQ(group.stored.offset, f32_to_f16(0.1f));
}

// 245 * 2^-26 is half a step of the smallest fp16 scale: a tie, to even, which is 0.
TEST(QuantizeGroup, RangeTooSmallForAScaleIsAConstant) {
  const Group group = quantized({1.0f, 1.0f + 0x1p-19f});
  EXPECT_EQ(group.scale, 0.0f);
  EXPECT_EQ(group.codes[1], 0);
  EXPECT_EQ(group.offset, 1.0f);
}

TEST(QuantizeGroup, TinyRangesWithSubnormalScalesStayClose) {
  const std::vector<float> x = uniform_floats(128, 5, -1e-4f, 1e-4f);  // scale 8e-7: 14 fp16 steps
  const Group group = quantized(x);
  EXPECT_GT(group.scale, 0.0f);
  EXPECT_LT(group.scale, 0x1p-14f);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(group.target(i), x[i], 3e-6f);
}

TEST(QuantizeGroup, HugeValuesAreClampedNotLost) {
  const float max = std::numeric_limits<float>::max();
  const Group group = quantized({-max, -1e6f, 0.0f, 1e6f, max});
  EXPECT_EQ(group.scale, kHalfMax);
  EXPECT_EQ(group.offset, -kHalfMax);
  EXPECT_EQ(group.codes.front(), 0);
  EXPECT_EQ(group.codes.back(), 255);
  EXPECT_TRUE(std::isfinite(group.target(4)));
}

TEST(QuantizeGroup, OffsetBeyondHalfIsClamped) {
  EXPECT_EQ(quantized({-1e6f, -1e6f}).offset, -kHalfMax);
  EXPECT_EQ(quantized({1e6f, 1e6f}).offset, kHalfMax);
}

TEST(QuantizeGroup, NanAndInfinityStayVisible) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const std::size_t place : {0u, 17u, 31u}) {
      std::vector<float> x = uniform_floats(32, 1, -1, 1);
      x[place] = bad;
      const Group group = quantized(x);
      EXPECT_TRUE(std::isnan(group.scale));
      EXPECT_TRUE(std::isnan(group.offset));
      EXPECT_EQ(group.stored, (GroupScale{0x7e00, 0x7e00}));
      EXPECT_EQ(std::count(group.codes.begin(), group.codes.end(), 0), 32);
      EXPECT_TRUE(std::isnan(group.target(0)));
      EXPECT_TRUE(std::isnan(group.draft(0)));
    }
  }
}

TEST(Encode, RoundsTiesToEvenAndClamps) {
  EXPECT_EQ(encode(2.5f, 1.0f, 0.0f), 2);
  EXPECT_EQ(encode(3.5f, 1.0f, 0.0f), 4);
  EXPECT_EQ(encode(-7.0f, 1.0f, 0.0f), 0);
  EXPECT_EQ(encode(300.0f, 1.0f, 0.0f), 255);
  EXPECT_EQ(encode(10.0f, 0.5f, 8.0f), 4);
}

TEST(Values, DraftIsTheCentreOfTheCellsTargets) {
  for (int upper = 0; upper < 16; ++upper) {
    double sum = 0;
    for (int lower = 0; lower < 16; ++lower) {
      const auto code = static_cast<std::uint8_t>(16 * upper + lower);
      sum += target_value(code, 0.25f, -3.0f);
      EXPECT_EQ(draft_value(code, 0.25f, -3.0f), draft_value(16 * upper, 0.25f, -3.0f));
    }
    EXPECT_EQ(draft_value(16 * upper, 0.25f, -3.0f), sum / 16);
  }
}

// --- the position rule ---------------------------------------------------------------------------

TEST(FirstFullPosition, IsTheTableOfTheDesign) {
  constexpr int kPage = 128;
  const std::pair<int, int> table[] = {{0, 0},     {1, 0},     {127, 0},   {128, 0},   {255, 0},
                                       {256, 128}, {383, 128}, {384, 256}, {1000, 768}};
  for (const auto& [position, first] : table) {
    EXPECT_EQ(first_full_position(position, kPage), first) << position;
  }
}

TEST(FirstFullPosition, KeepsBetweenOneAndTwoPagesInFullPrecision) {
  for (const int page : {16, 32, 64, 128}) {
    for (int position = 0; position < 10 * page; ++position) {
      const int first = first_full_position(position, page);
      EXPECT_EQ(first % page, 0);
      const int full = position - first + 1;
      EXPECT_LE(full, 2 * page);
      EXPECT_GE(full, std::min(position, page) + 1);
    }
  }
}

// --- units ---------------------------------------------------------------------------------------

struct Unit {
  KvShape shape;
  std::vector<float> keys, values;
  std::vector<std::byte> upper, lower;

  explicit Unit(const KvShape& shape)
      : shape(shape),
        keys(uniform_floats(shape.page_size * shape.head_dim, 1, -2, 3)),
        values(uniform_floats(shape.page_size * shape.head_dim, 2, -1, 1)),
        upper(shape.upper_unit_bytes(), std::byte{0xcc}),
        lower(shape.lower_unit_bytes(), std::byte{0xcc}) {}
  void encode() { encode_unit(shape, keys.data(), values.data(), upper.data(), lower.data()); }
};

const KvShape kShapes[] = {
    {1, 1, 64, 64}, {1, 1, 80, 32}, {1, 1, 96, 128}, {1, 1, 128, 128}, {1, 1, 256, 64},
};

TEST(Unit, BytesPerElementAreThoseOfTheDesign) {
  constexpr KvShape kShape{1, 1, 128, 128};
  constexpr double kElements = 2.0 * 128 * 128;
  EXPECT_DOUBLE_EQ(kShape.upper_unit_bytes() / kElements, 0.53125);
  EXPECT_DOUBLE_EQ((kShape.upper_unit_bytes() + kShape.lower_unit_bytes()) / kElements, 1.03125);
}

TEST(Unit, PartsFollowEachOtherAndFillTheUnit) {
  for (const KvShape& shape : kShapes) {
    Unit unit(shape);
    const UnitPlanes planes = unit_planes(shape, unit.upper.data());
    const UnitScales scales = unit_scales(shape, unit.upper.data());
    const int values = shape.page_size * shape.value_groups();
    EXPECT_EQ(planes.keys, unit.upper.data());
    EXPECT_EQ(planes.values, planes.keys + shape.plane_bytes());
    EXPECT_EQ(reinterpret_cast<std::byte*>(scales.key_scale), planes.values + shape.plane_bytes());
    EXPECT_EQ(scales.key_offset, scales.key_scale + shape.head_dim);
    EXPECT_EQ(scales.value_scale, scales.key_offset + shape.head_dim);
    EXPECT_EQ(scales.value_offset, scales.value_scale + values);
    EXPECT_EQ(reinterpret_cast<std::byte*>(scales.value_offset + values),
              unit.upper.data() + unit.upper.size());
  }
}

// Keys are grouped per channel, values per token and 128 channels; the even channel is in the low
// nibble. Written out here by hand, from the groups alone.
TEST(Unit, HoldsTheCodesAndScalesOfItsGroups) {
  for (const KvShape& shape : kShapes) {
    Unit unit(shape);
    unit.encode();
    const int dim = shape.head_dim;
    const auto nibble = [&](const std::byte* plane, int t, int c) {
      const int byte = std::to_integer<int>(plane[(t * dim + c) / 2]);
      return c % 2 == 0 ? byte & 15 : byte >> 4;
    };
    const UnitPlanes upper = unit_planes(shape, unit.upper.data());
    const UnitPlanes lower = unit_planes(shape, unit.lower.data());
    const UnitScales scales = unit_scales(shape, unit.upper.data());
    for (int c = 0; c < dim; ++c) {
      std::vector<float> column(shape.page_size);
      for (int t = 0; t < shape.page_size; ++t) column[t] = unit.keys[t * dim + c];
      const Group group = quantized(column);
      ASSERT_EQ(scales.key_scale[c], group.stored.scale);
      ASSERT_EQ(scales.key_offset[c], group.stored.offset);
      for (int t = 0; t < shape.page_size; ++t) {
        ASSERT_EQ(nibble(upper.keys, t, c), group.codes[t] >> 4);
        ASSERT_EQ(nibble(lower.keys, t, c), group.codes[t] & 15);
      }
    }
    for (int t = 0; t < shape.page_size; ++t) {
      for (int first = 0; first < dim; first += kValueGroup) {
        const auto begin = unit.values.begin() + t * dim + first;
        const Group group = quantized({begin, begin + std::min(kValueGroup, dim - first)});
        const int index = t * shape.value_groups() + first / kValueGroup;
        ASSERT_EQ(scales.value_scale[index], group.stored.scale);
        ASSERT_EQ(scales.value_offset[index], group.stored.offset);
        for (std::size_t c = 0; c < group.codes.size(); ++c) {
          const int channel = first + static_cast<int>(c);
          ASSERT_EQ(nibble(upper.values, t, channel), group.codes[c] >> 4);
          ASSERT_EQ(nibble(lower.values, t, channel), group.codes[c] & 15);
        }
      }
    }
  }
}

TEST(Unit, DecodesWithinHalfAStepOrHalfACell) {
  for (const KvShape& shape : kShapes) {
    Unit unit(shape);
    unit.encode();
    std::vector<float> keys(unit.keys.size()), values(unit.keys.size());
    // Ranges 5 and 2 make steps of 5/245 and 2/245 at most.
    decode_unit(shape, unit.upper.data(), unit.lower.data(), KvRead::kBoth, keys.data(),
                values.data());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_NEAR(keys[i], unit.keys[i], 0.501 * 5 / 245);
      ASSERT_NEAR(values[i], unit.values[i], 0.501 * 2 / 245);
    }
    decode_unit(shape, unit.upper.data(), nullptr, KvRead::kUpper, keys.data(), values.data());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_NEAR(keys[i], unit.keys[i], 8.01 * 5 / 245);
      ASSERT_NEAR(values[i], unit.values[i], 8.01 * 2 / 245);
    }
  }
}

TEST(Unit, ANanSpoilsItsGroupAndNoOther) {
  for (const KvShape& shape : kShapes) {
    Unit unit(shape);
    const int dim = shape.head_dim;
    unit.keys[5 * dim + 7] = kNan;
    unit.values[9 * dim + 3] = kInfinity;
    unit.encode();
    std::vector<float> keys(unit.keys.size()), values(unit.keys.size());
    for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
      decode_unit(shape, unit.upper.data(), unit.lower.data(), read, keys.data(), values.data());
      for (int t = 0; t < shape.page_size; ++t) {
        for (int c = 0; c < dim; ++c) {
          ASSERT_EQ(std::isnan(keys[t * dim + c]), c == 7);
          ASSERT_EQ(std::isnan(values[t * dim + c]), t == 9 && c < kValueGroup);
        }
      }
    }
  }
}

TEST(Unit, OffsetsOfUnitsTileThePage) {
  constexpr KvShape kShape{3, 5, 80, 32};
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 5; ++head) {
      const std::size_t unit = layer * 5 + head;
      EXPECT_EQ(kShape.upper_offset(layer, head), unit * kShape.upper_unit_bytes());
      EXPECT_EQ(kShape.lower_offset(layer, head), unit * kShape.lower_unit_bytes());
    }
  }
  EXPECT_EQ(kShape.units(), 15u);
}

}  // namespace
}  // namespace quantspec
