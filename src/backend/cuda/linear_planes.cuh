// The format (linear_inputs.cuh) of planes of codes (linear_layout.h).
#pragma once

#include <cfloat>

#include "backend/cuda/plane_copies.cuh"

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
// Of upper nibbles alone, rows r + 8 take their whole words, 16 u + the nibble of row r, and the
// dot product of row r is subtracted: a mask less for each word.
template <bool kBoth, int kGroup, int kTilesTogether, int kUnitsOfStage = 1>
struct PlaneFormat : PlaneCopies<kTilesTogether, upper_unit_bytes(kGroup),
                                 kBoth ? kLowerUnitBytes : 0, kUnitsOfStage> {
  static constexpr LinearSizes kSizes = plane_sizes(kBoth, kGroup, kTilesTogether, kUnitsOfStage);
  static constexpr int kUnit = kSizes.unit;
  static constexpr int kTogether = kSizes.together;
  // With two there are half as many copies to start, and the products of one hide what those of the
  // other wait for.
  static constexpr int kStageUnits = kSizes.stage_units;
  static constexpr int kColumns = kSizes.columns;
  static constexpr int kInputBytes = kSizes.input;
  static constexpr bool kPlanes = kSizes.planes;
  static constexpr bool kOfEachOp = kGroup == 128;
  static constexpr int kBandGroups = kSizes.band_groups;  // and of a unit
  static constexpr int kUpperBytes = upper_unit_bytes(kGroup);
  static constexpr float kStep = kBoth ? 1.0f : 16.0f;  // m
  static constexpr float kValue = kBoth ? 0.0f : 7.5f;  // v
  using PlaneFormat::PlaneCopies::kTileBytes;
  static constexpr int kStageBytes = kSizes.stage;
  static_assert(kStageBytes == kTogether * kTileBytes);
  static constexpr int kStreamedBytes = kSizes.streamed;
  static constexpr int max_rows(int tiles) { return tiles * 4; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][2];

  template <int kBatch>
  __device__ static void put(const Inputs& to, int row, int band, int count,
                             const float4 (&x)[kBatch]) {
    constexpr int kWidth = kGroup / 4;  // lanes of a group
    const int lane = threadIdx.x % 32, own = lane % kWidth;
    float max[kBatch];
    std::uint32_t hi[kBatch], lo[kBatch];
    int sum[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) max[i] = greatest<kWidth>(x[i]);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const auto bytes = activation_bytes(x[i], activation_power(max[i]).scale);
      hi[i] = bytes.hi;
      lo[i] = bytes.lo;
      sum[i] = bytes.sum;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum[i] = __reduce_add_sync(lanes_of_group<kWidth>(), sum[i]);
    std::byte* at = to.at<1>(band * kBandInputs + lane * 4, 2 * row);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i < count) {
        *reinterpret_cast<std::uint32_t*>(at) = hi[i];
        *reinterpret_cast<std::uint32_t*>(at + to.stride) = lo[i];
      }
      at += kBandInputs;
    }
    // Lane i of a group writes what is kept beside the group of band i.
    if (own >= min(count, kBatch)) return;
    float own_max = max[0];
    int own_sum = sum[0];
#pragma unroll
    for (int i = 1; i < kBatch; ++i) {
      if (own == i) {
        own_max = max[i];
        own_sum = sum[i];
      }
    }
    const float step = own_max <= FLT_MAX ? activation_power(own_max).inverse : NAN;
    to.groups[row * to.group_stride + (band + own) * kBandGroups + lane / kWidth] = {
        kStep * step, step, static_cast<float>(own_sum) * step, 0};
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

  // Dot products of a tile's 16 rows and a group of each of 4 activation rows: 256 [0] + [1], of
  // row g, and [2], [3] of row g + 8 (of upper nibbles alone: of both rows).
  template <int kTiles>
  using Dots = std::int32_t[kTiles][4];

  template <int kTiles>
  __device__ static void multiply(const LaneInputs<kTiles>& inputs, int unit, std::uint32_t stage,
                                  Sums<kTiles>& sums) {
    add_unit<0>(inputs, unit, stage, dots_of<0>(inputs, unit, stage), sums);
  }
  // A stage of two units; `units`: of the segment from `unit` on.
  template <int kTiles>
  __device__ static void multiply(const LaneInputs<kTiles>& inputs, int unit, int units,
                                  std::uint32_t stage, Sums<kTiles>& sums) {
    if constexpr (kTiles == 1) {  // where there is no second unit, its products are not used
      const int next = unit + (units > 1);
      const UnitDots<kTiles> first = dots_of<0>(inputs, unit, stage);
      const UnitDots<kTiles> second = dots_of<1>(inputs, next, stage);
      add_unit<0>(inputs, unit, stage, first, sums);
      if (units > 1) add_unit<1>(inputs, next, stage, second, sums);
    } else {
      multiply(inputs, unit, stage, sums);
      if (units > 1) {
        add_unit<1>(inputs, unit + 1, stage, dots_of<1>(inputs, unit + 1, stage), sums);
      }
    }
  }

  // Of a unit of a stage: of each group, or of its halves where registers suffice, which are added
  // up later.
  template <int kTiles>
  struct UnitDots {
    static constexpr int kSecond = kBandGroups == 2 || kTiles <= 2;  // where second halves go
    Dots<kTiles> of[kTogether][kSecond + 1] = {};
  };

  // Of unit kIndex of the stage.
  template <int kIndex, int kTiles>
  __device__ static UnitDots<kTiles> dots_of(const LaneInputs<kTiles>& inputs, int unit,
                                             std::uint32_t stage) {
    constexpr int kSecond = UnitDots<kTiles>::kSecond;
    const int lane = threadIdx.x % 32;
    UnitDots<kTiles> dots;
    const auto add_half = [&]<int kHalf>() {
      uint4 b[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        b[n] = load_shared16<64 * kHalf>(inputs.values[n] + unit * kPlaneUnit);
      }
#pragma unroll
      for (int tile = 0; tile < kTogether; ++tile) {
        add_products<512 * kHalf + kIndex * kUpperBytes>(stage + tile * kTileBytes + lane * 16, b,
                                                         dots.of[tile][kHalf * kSecond]);
      }
    };
    add_half.template operator()<0>();
    add_half.template operator()<1>();
    if constexpr (kBandGroups == 1 && kSecond == 1) {
#pragma unroll
      for (int i = 0; i < kTogether * 4 * kTiles; ++i) {
        const int tile = i / (4 * kTiles), n = i / 4 % kTiles;
        dots.of[tile][0][n][i % 4] += dots.of[tile][1][n][i % 4];
      }
    }
    return dots;
  }
  template <int kIndex, int kTiles>
  __device__ static void add_unit(const LaneInputs<kTiles>& inputs, int unit, std::uint32_t stage,
                                  const UnitDots<kTiles>& dots, Sums<kTiles>& sums) {
    const std::uint32_t scales =
        stage + kIndex * kUpperBytes + 4 * kPlaneUnitWords + threadIdx.x % 32 / 4 * 8;
#pragma unroll
    for (int group = 0; group < kBandGroups; ++group) {
      add_group(inputs, unit * kBandGroups + group, scales + group * kGroupScaleBytes, dots.of,
                group, sums);
    }
  }

  // Half a unit of a tile, kOffset bytes from `place` on, with the same of activations.
  template <int kOffset, int kTiles>
  __device__ static void add_products(std::uint32_t place, const uint4 (&b)[kTiles],
                                      Dots<kTiles>& dots) {
    std::uint32_t a[8];  // rows g and g + 8 of 4 inputs each
    const uint4 upper = load_shared16<kOffset>(place);
    const uint4 lower = kBoth ? load_shared16<kUpperBytes + kOffset>(place) : uint4{};
    bytes(upper.x, lower.x, a[0], a[1]);
    bytes(upper.y, lower.y, a[2], a[3]);
    bytes(upper.z, lower.z, a[4], a[5]);
    bytes(upper.w, lower.w, a[6], a[7]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      mma_u8(dots[n], a[0], a[1], a[2], a[3], b[n].x, b[n].y);
      mma_u8(dots[n], a[4], a[5], a[6], a[7], b[n].z, b[n].w);
    }
  }
  // What a word has of rows r and r + 8; of upper nibbles alone the second is of both.
  __device__ static void bytes(std::uint32_t upper, std::uint32_t lower, std::uint32_t& first,
                               std::uint32_t& second) {
    if constexpr (kBoth) {
      first = select_bits(0xf0f0f0f0, upper << 4, lower);
      second = select_bits(0xf0f0f0f0, upper, lower >> 4);
    } else {
      first = upper & 0x0f0f0f0f;
      second = upper;
    }
  }

  // group: since the segment's first. scales: the first tile's (scale, offset) of rows g and g + 8.
  template <int kTiles, int kParts>
  __device__ static void add_group(const LaneInputs<kTiles>& inputs, int group,
                                   std::uint32_t scales,
                                   const Dots<kTiles> (&dots)[kTogether][kParts], int part,
                                   Sums<kTiles>& sums) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 of_row = load_shared16(inputs.groups[n][0] + group * 16);
      const float low_step = __uint_as_float(of_row.x), high_step = __uint_as_float(of_row.y);
      const float sum = __uint_as_float(of_row.z);
#pragma unroll
      for (int tile = 0; tile < kTogether; ++tile) {
        const uint2 stored = load_shared8(scales + tile * kTileBytes);
        const float2 low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
        const float2 high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
        const std::int32_t(&of_tile)[4] = dots[tile][part][n];
        const int first = of_tile[0] * 256 + of_tile[1];
        const int second = of_tile[2] * 256 + of_tile[3] - (kBoth ? 0 : first);
        float(&to)[2] = sums[tile][n];
        to[0] = fmaf(__fmul_rn(low.x, low_step), static_cast<float>(first),
                     fmaf(fmaf(kValue, low.x, low.y), sum, to[0]));
        to[1] = fmaf(__fmul_rn(high.x, high_step), static_cast<float>(second),
                     fmaf(fmaf(kValue, high.x, high.y), sum, to[1]));
      }
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
