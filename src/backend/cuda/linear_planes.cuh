// The format (linear_inputs.cuh) of planes of codes (linear_layout.h).
#pragma once

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// A code becomes an fp16 operand by a mask alone: the subnormal whose bits it is, code * 2^-24.
// Activations are fp16 with a power of two for each row and group. With m, c, v for the upper
// nibble u (b = u, m = 16, c = 8, v = 135.5) or the whole code (m = 1, c = v = 128):
//
//     weight = offset + v scale + m scale (b - c)
//     sum over a group of weight x = m scale (sum of b x' - c sum of x') + (offset + v scale) sum
//     of x
//
// where x' is the rounded x: its error is multiplied by b - c, not by b.
template <bool kBoth>
struct PlaneFormat {
  static constexpr int kUnit = kPlaneUnit;
  static constexpr int kColumns = 1;
  static constexpr int kInputBytes = 2;
  static constexpr int kGroupBytes = 16;
  static constexpr bool kPlanes = true;
  static constexpr float kStep = kBoth ? 1.0f : 16.0f;      // m
  static constexpr float kCentre = kBoth ? 128.0f : 8.0f;   // c
  static constexpr float kValue = kBoth ? 128.0f : 135.5f;  // v
  // The upper nibbles of input 2 and 3 of every 4 are taken 16 times too large.
  static constexpr float kOddPairs = kBoth ? 1.0f : 0.0625f;
  // In a stage the lower plane's unit follows the larger of upper units.
  static constexpr int kLowerAt = upper_unit_bytes(64);
  static constexpr int unit_bytes(int group) {
    return kBoth ? kLowerAt + kLowerUnitBytes : upper_unit_bytes(group);
  }
  static constexpr int max_rows(int tiles) { return tiles * 8; }

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    const int lane = threadIdx.x % 32;
    return {source.data + tile * args.stride + unit * args.unit_bytes + lane * 16,
            kBoth ? source.lower + tile * args.lower_stride + unit * kLowerUnitBytes + lane * 16
                  : nullptr};
  }
  __device__ static void load(const LinearArgs& args, WeightPlace& place, std::uint32_t stage) {
    const int lane = threadIdx.x % 32;
    stage += lane * 16;
    copy_stream16(stage, place.data);
    copy_stream16(stage + 512, place.data + 512);
    if (lane < (args.unit_bytes - 1024) / 16) copy_stream16(stage + 1024, place.data + 1024);
    place.data += args.unit_bytes;
    if constexpr (kBoth) {
      copy_stream16(stage + kLowerAt, place.lower);
      copy_stream16(stage + kLowerAt + 512, place.lower + 512);
      place.lower += kLowerUnitBytes;
    }
  }

  __device__ static void put(const LinearArgs& args, const Inputs& to, int row, int first,
                             float4 x) {
    const int lane = threadIdx.x % 32, width = args.group / 4;  // lanes of a group
    const int input = first + lane * 4;
    const PowerOfTwo power = scale_to_half(greatest(x, width));
    const float odd = power.scale * kOddPairs;
    const __half2 a = __floats2half2_rn(x.x * power.scale, x.y * power.scale);
    const __half2 b = __floats2half2_rn(x.z * odd, x.w * odd);
    *reinterpret_cast<uint2*>(to.at<2>(input, row)) = {reinterpret_cast<const std::uint32_t&>(a),
                                                       reinterpret_cast<const std::uint32_t&>(b)};
    const float sum = warp_sum(x.x + x.y + x.z + x.w, width);
    const float rounded = warp_sum(
        __low2float(a) + __high2float(a) + (__low2float(b) + __high2float(b)) * (1 / kOddPairs),
        width);
    if (lane % width == 0) {
      to.groups[row * to.group_stride + group_of(args, input)] = {
          power.inverse * (kStep * 0x1p24f), rounded * power.inverse * (kStep * kCentre), sum, 0};
    }
  }

  __device__ static int group_of(const LinearArgs& args, int input) {
    return args.group == 64 ? input / 64 : input / 128;
  }

  __device__ static void fragment(std::uint32_t upper, std::uint32_t lower, std::uint32_t (&a)[4]) {
    if constexpr (kBoth) {
      const std::uint32_t even = select_bits(0xf0f0f0f0, upper << 4, lower);
      const std::uint32_t odd = select_bits(0xf0f0f0f0, upper, lower >> 4);
      a[0] = __byte_perm(even, 0, 0x4240);
      a[1] = __byte_perm(even, 0, 0x4341);
      a[2] = __byte_perm(odd, 0, 0x4240);
      a[3] = __byte_perm(odd, 0, 0x4341);
    } else {
      a[0] = upper & 0x000f000f;
      a[2] = upper & 0x00f000f0;
      upper >>= 8;
      a[1] = upper & 0x000f000f;
      a[3] = upper & 0x00f000f0;
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
          shared_address(inputs.at<2>(first + 8 * t, min(8 * n + g, inputs.columns - 1)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = min(8 * n + 2 * t + i, args.num_rows - 1);
        lane.groups[n][i] =
            shared_address(inputs.groups + row * inputs.group_stride + group_of(args, first));
      }
    }
    return lane;
  }

  // step: units since the slice's first.
  template <int kTiles>
  __device__ static void multiply(const LinearArgs& args, const LaneInputs<kTiles>& inputs,
                                  int step, std::uint32_t stage, TileSums<kTiles>& sums) {
    const int lane = threadIdx.x % 32, second = args.places.stage_bytes / 2;
    const std::uint32_t place = stage + lane * 16, scales = stage + lane / 4 * 8;
    TileSums<kTiles> dots = {};
    add_products<0>(inputs, step, place, second, dots);
    if (args.group == 64) {
      add_group<0>(inputs, scales, second, 2 * step, dots, sums);
      add_products<1>(inputs, step, place, second, dots);
      add_group<kGroupScaleBytes>(inputs, scales, second, 2 * step + 1, dots, sums);
    } else {
      add_products<1>(inputs, step, place, second, dots);
      add_group<0>(inputs, scales, second, step, dots, sums);
    }
  }

  // Half a unit.
  template <int kHalf, int kTiles>
  __device__ static void add_products(const LaneInputs<kTiles>& inputs, int step,
                                      std::uint32_t place, int second, TileSums<kTiles>& dots) {
    std::uint32_t a[2][4][4];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const uint4 upper = load_shared16<512 * kHalf>(place);
      const uint4 lower = kBoth ? load_shared16<kLowerAt + 512 * kHalf>(place) : uint4{};
      fragment(upper.x, lower.x, a[tile][0]);
      fragment(upper.y, lower.y, a[tile][1]);
      fragment(upper.z, lower.z, a[tile][2]);
      fragment(upper.w, lower.w, a[tile][3]);
      place += second;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const std::uint32_t values = inputs.values[n] + step * (2 * kUnit);
      const uint4 b = load_shared16<128 * kHalf>(values),
                  c = load_shared16<128 * kHalf + 64>(values);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) mma_f16(dots[tile][n], a[tile][0], b.x, b.y);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) mma_f16(dots[tile][n], a[tile][1], b.z, b.w);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) mma_f16(dots[tile][n], a[tile][2], c.x, c.y);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) mma_f16(dots[tile][n], a[tile][3], c.z, c.w);
    }
  }

  // group: since the slice's first. scales: (scale, offset) of rows g and g + 8.
  template <int kOffset, int kTiles>
  __device__ static void add_group(const LaneInputs<kTiles>& inputs, std::uint32_t scales,
                                   int second, int group, TileSums<kTiles>& dots,
                                   TileSums<kTiles>& sums) {
    float scale[2][2], base[2][2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const uint2 stored = load_shared8<1024 + kOffset>(scales + tile * second);
      const float2 low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
      const float2 high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
      scale[tile][0] = low.x;
      scale[tile][1] = high.x;
      base[tile][0] = fmaf(kValue, low.x, low.y);
      base[tile][1] = fmaf(kValue, high.x, high.y);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 of_row = load_shared16(inputs.groups[n][i] + group * 16);
        const float step = __uint_as_float(of_row.x), centre = __uint_as_float(of_row.y);
        const float sum = __uint_as_float(of_row.z);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& dot = dots[j / 2][n][j % 2 * 2 + i];
          float& total = sums[j / 2][n][j % 2 * 2 + i];
          total = fmaf(scale[j / 2][j % 2], fmaf(dot, step, -centre),
                       fmaf(base[j / 2][j % 2], sum, total));
          dot = 0.0f;
        }
      }
    }
  }

  template <int kTiles, typename F>
  __device__ static void for_each_sum(const LinearArgs& args, const float (&sums)[kTiles][4],
                                      const F& f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * n + 2 * t + i % 2;
        if (row < args.num_rows) f(row, g + i / 2 * 8, sums[n][i]);
      }
    }
  }
};

}  // namespace quantspec::cuda
