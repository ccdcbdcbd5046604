// The format (linear_inputs.cuh) of planes of codes (linear_layout.h).
#pragma once

#include <bit>
#include <cfloat>

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// Products are of integers, and exact: codes are the unsigned bytes of A, with no more to it than a
// mask, and an activation is an integer x' of 16 bits, with a power of two for each row and group.
// Its parts, x' = 256 hi + lo, are neighbouring columns of B, whose sums meet in one lane. With m,
// v for what an upper nibble u stands for (16 u + 7.5) or the whole code b:
//
//     weight = offset + scale (m a + v)
//     sum over a group of weight x = m scale step (sum of a x') + (offset + v scale) step (sum of
//     x')
//
// Nibbles of rows r + 8 stay where they are in a word: they are 16 u.
template <bool kBoth, int kGroup>
struct PlaneFormat {
  static constexpr int kUnit = kPlaneUnit;
  static constexpr int kStageUnits = 2;
  static constexpr int kTogether = 1;
  static constexpr int kColumns = 2;
  static constexpr int kInputBytes = 1;
  static constexpr int kPadding = 64;
  static constexpr int kGroupBytes = 16;
  static constexpr bool kPlanes = true;
  static constexpr bool kOfEachOp = kGroup == 128;
  static constexpr int kChunkGroups = kPlaneUnit / kGroup;  // and of a unit
  static constexpr int kUpperBytes = upper_unit_bytes(kGroup);
  static constexpr float kStep = kBoth ? 1.0f : 16.0f;  // m
  static constexpr float kValue = kBoth ? 0.0f : 7.5f;  // v
  // In a stage the lower plane's units follow the upper plane's.
  static constexpr int kLowerAt = kStageUnits * kUpperBytes;
  static constexpr int kStageBytes = kLowerAt + (kBoth ? kStageUnits * kLowerUnitBytes : 0);
  static constexpr int max_rows(int tiles) { return tiles * 4; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][2];

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    return {source.data + tile * args.stride + unit * kUpperBytes,
            kBoth ? source.lower + tile * args.lower_stride + unit * kLowerUnitBytes : nullptr};
  }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  // One lane.
  __device__ static void load_bulk(WeightPlace& place, std::uint32_t stage, int units,
                                   std::uint64_t* barrier) {
    const int bytes = units * kUpperBytes, lower = kBoth ? units * kLowerUnitBytes : 0;
    barrier_expect(barrier, bytes + lower);
    copy_bulk(stage, place.data, bytes, barrier);
    place.data += bytes;
    if constexpr (kBoth) {
      copy_bulk(stage + kLowerAt, place.lower, lower, barrier);
      place.lower += lower;
    }
  }
#endif
  // All lanes.
  __device__ static void load(const LinearArgs&, WeightPlace& place, std::uint32_t stage,
                              int units) {
    const int bytes = units * kUpperBytes, lower = kBoth ? units * kLowerUnitBytes : 0;
    for (int i = threadIdx.x % 32 * 16; i < bytes; i += 512) {
      copy_stream16(stage + i, place.data + i);
    }
    for (int i = threadIdx.x % 32 * 16; i < lower; i += 512) {
      copy_stream16(stage + kLowerAt + i, place.lower + i);
    }
    place.data += bytes;
    place.lower += lower;
  }

  template <int kBatch>
  __device__ static void put(const Inputs& to, const int (&rows)[kBatch],
                             const int (&firsts)[kBatch], const float4 (&x)[kBatch]) {
    constexpr int kWidth = kGroup / 4;  // lanes of a group
    const int lane = threadIdx.x % 32, ones = 0x01010101;
    float step[kBatch];
    std::uint32_t hi[kBatch], lo[kBatch];
    int sum[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) step[i] = greatest<kWidth>(x[i]);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float max = step[i] * 1.01f;  // so that |x'| is below 2^15 - 128
      const PowerOfTwo power = scale_to_half(max);
      step[i] = max <= FLT_MAX ? power.inverse : NAN;
      // The low 22 bits of a float of this magnitude are an integer, here x'.
      const auto rounded = [&](float v) {
        return __float_as_uint(fmaf(v, power.scale, 0x1.8p23f));
      };
      const std::uint32_t a = rounded(x[i].x), b = rounded(x[i].y);
      const std::uint32_t c = rounded(x[i].z), d = rounded(x[i].w);
      lo[i] = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
      hi[i] = __byte_perm(__byte_perm(a + 128, b + 128, 0x0051),
                          __byte_perm(c + 128, d + 128, 0x0051), 0x5410);
      sum[i] =
          256 * __dp4a(static_cast<int>(hi[i]), ones, 0) + __dp4a(static_cast<int>(lo[i]), ones, 0);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum[i] = __reduce_add_sync(lanes_of_group<kWidth>(), sum[i]);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = firsts[i] + lane * 4;
      std::byte* const at = to.at<1>(input, 2 * rows[i]);
      *reinterpret_cast<std::uint32_t*>(at) = hi[i];
      *reinterpret_cast<std::uint32_t*>(at + to.stride) = lo[i];
      if (lane % kWidth == 0) {
        to.groups[rows[i] * to.group_stride + (input >> std::countr_zero(unsigned{kGroup}))] = {
            kStep * step[i], step[i], static_cast<float>(sum[i]) * step[i], 0};
      }
    }
  }

  template <int kTiles>
  __device__ static LaneInputs<kTiles> lane_inputs(const LinearArgs& args, const Inputs& inputs,
                                                   int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    LaneInputs<kTiles> lane{};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      lane.values[n] =
          shared_address(inputs.at<1>(first + 16 * t, min(8 * n + g, inputs.columns - 1)));
      const int row = min(4 * n + t, args.num_rows - 1);
      lane.groups[n][0] =
          shared_address(inputs.groups + row * inputs.group_stride + first / kGroup);
    }
    return lane;
  }

  // Dot products of a tile's 16 rows and a group of each of 4 activation rows: [0] + 256 [1], of
  // row g, and [2], [3] of row g + 8.
  template <int kTiles>
  using Dots = std::int32_t[kTiles][4];

  // `units` from `unit` of the slice on; both at once where registers allow.
  template <int kTiles>
  __device__ static void multiply(const LaneInputs<kTiles>& inputs, int unit, int units,
                                  std::uint32_t stage, Sums<kTiles>& sums) {
    if (kTiles <= 2 && units > 1) {
      multiply_units<0, 2>(inputs, unit, stage, sums[0]);
    } else {
      multiply_units<0, 1>(inputs, unit, stage, sums[0]);
      if (kTiles > 2 && units > 1) multiply_units<1, 1>(inputs, unit, stage, sums[0]);
    }
  }
  // Units kFirst .. of a stage.
  template <int kFirst, int kUnits, int kTiles>
  __device__ static void multiply_units(const LaneInputs<kTiles>& inputs, int unit,
                                        std::uint32_t stage, float (&sums)[kTiles][2]) {
    constexpr int kSecond = kChunkGroups == 2 || kTiles <= 2;  // where second halves of a unit go
    const int lane = threadIdx.x % 32;
    const std::uint32_t place = stage + lane * 16, scales = stage + lane / 4 * 8;
    Dots<kTiles> dots[kUnits][kSecond + 1] = {};
    add_products<2 * kFirst>(inputs, unit, place, dots[0][0]);
    if constexpr (kUnits == 2) add_products<2 * kFirst + 2>(inputs, unit, place, dots[1][0]);
    add_products<2 * kFirst + 1>(inputs, unit, place, dots[0][kSecond]);
    if constexpr (kUnits == 2) add_products<2 * kFirst + 3>(inputs, unit, place, dots[1][kSecond]);
    add_scaled<kFirst>(inputs, unit, scales, dots[0], sums);
    if constexpr (kUnits == 2) add_scaled<kFirst + 1>(inputs, unit, scales, dots[1], sums);
  }

  // Half kHalf of a stage.
  template <int kHalf, int kTiles>
  __device__ static void add_products(const LaneInputs<kTiles>& inputs, int unit,
                                      std::uint32_t place, Dots<kTiles>& dots) {
    constexpr int kUpper = kHalf / 2 * kUpperBytes + kHalf % 2 * 512;
    constexpr int kLower = kLowerAt + kHalf * 512;
    std::uint32_t a[8];  // rows g and g + 8 of 4 inputs each
    const uint4 upper = load_shared16<kUpper>(place);
    const uint4 lower = kBoth ? load_shared16<kLower>(place) : uint4{};
    bytes(upper.x, lower.x, a[0], a[1]);
    bytes(upper.y, lower.y, a[2], a[3]);
    bytes(upper.z, lower.z, a[4], a[5]);
    bytes(upper.w, lower.w, a[6], a[7]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 b = load_shared16<64 * kHalf>(inputs.values[n] + unit * kPlaneUnit);
      mma_u8(dots[n], a[0], a[1], a[2], a[3], b.x, b.y);
      mma_u8(dots[n], a[4], a[5], a[6], a[7], b.z, b.w);
    }
  }
  // What a word has of rows r and r + 8.
  __device__ static void bytes(std::uint32_t upper, std::uint32_t lower, std::uint32_t& first,
                               std::uint32_t& second) {
    if constexpr (kBoth) {
      first = select_bits(0xf0f0f0f0, upper << 4, lower);
      second = select_bits(0xf0f0f0f0, upper, lower >> 4);
    } else {
      first = upper & 0x0f0f0f0f;
      second = upper & 0xf0f0f0f0;
    }
  }

  // Unit kIndex of a stage.
  template <int kIndex, int kTiles, int kParts>
  __device__ static void add_scaled(const LaneInputs<kTiles>& inputs, int unit,
                                    std::uint32_t scales, Dots<kTiles> (&dots)[kParts],
                                    float (&sums)[kTiles][2]) {
    constexpr int kScales = kIndex * kUpperBytes + 4 * kPlaneUnitWords;
    const int group = (unit + kIndex) * kChunkGroups;
    if constexpr (kChunkGroups == 1 && kParts == 2) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) dots[0][i / 4][i % 4] += dots[1][i / 4][i % 4];
    }
    add_group(inputs, group, load_shared8<kScales>(scales), dots[0], sums);
    if constexpr (kChunkGroups == 2) {
      add_group(inputs, group + 1, load_shared8<kScales + kGroupScaleBytes>(scales), dots[1], sums);
    }
  }
  // group: since the slice's first. stored: (scale, offset) of rows g and g + 8.
  template <int kTiles>
  __device__ static void add_group(const LaneInputs<kTiles>& inputs, int group, uint2 stored,
                                   const Dots<kTiles>& dots, float (&sums)[kTiles][2]) {
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
    const float low_base = fmaf(kValue, low.x, low.y), high_base = fmaf(kValue, high.x, high.y);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 of_row = load_shared16(inputs.groups[n][0] + group * 16);
      const float low_step = __uint_as_float(of_row.x), high_step = __uint_as_float(of_row.y);
      const float sum = __uint_as_float(of_row.z);
      const auto dot = [&](int i) { return static_cast<float>(dots[n][i] * 256 + dots[n][i + 1]); };
      sums[n][0] = fmaf(__fmul_rn(low.x, low_step), dot(0), fmaf(low_base, sum, sums[n][0]));
      sums[n][1] = fmaf(__fmul_rn(high.x, high_step), dot(2), fmaf(high_base, sum, sums[n][1]));
    }
  }

  template <int kTiles, typename F>
  __device__ static void for_each_sum(const LinearArgs& args, const float (&sums)[kTiles][2],
                                      const F& f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int row = 4 * n + t;
      if (row >= args.num_rows) continue;
      f(row, g, sums[n][0]);
      f(row, g + 8, sums[n][1]);
    }
  }
};

}  // namespace quantspec::cuda
