// Formats (linear_inputs.cuh) of matrices at full precision.
#pragma once

#include <type_traits>

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// --- full precision, 16 bits ---------------------------------------------------------------------

// x is split into two parts of the weights' type, x = hi + lo to 16 bits and more; the parts are
// neighbouring columns, whose sums meet in one lane.
template <typename T>
struct FullFormat {
  static constexpr int kUnit = 64;
  static constexpr int kTogether = 2;
  static constexpr int kStageUnits = 1;
  static constexpr int kColumns = 2;
  static constexpr int kInputBytes = 2;
  static constexpr int kPadding = 64;
  static constexpr bool kPlanes = false;
  static constexpr bool kHalf = std::is_same_v<T, __half>;
  static constexpr bool kOfEachOp = !kHalf;
  static constexpr int kChunkGroups = 2;
  static constexpr int kGroupBytes = kHalf ? 4 : 0;
  static constexpr int kRowBytes = 2 * kUnit;  // of a stage; 8 pieces of 16 bytes
  static constexpr int kUnitStep = kRowBytes;
  static constexpr int kUnitBytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = 2 * kUnitBytes;
  static constexpr int max_rows(int tiles) { return tiles * 4; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][4];

  // A stage is [row, piece], with pieces exchanged in odd rows so that 8 lanes that read two rows
  // meet different banks.
  __device__ static int piece_at(int row, int piece) {
    return row * kRowBytes + (piece ^ (row % 2 * 4)) * 16;
  }

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    const int lane = threadIdx.x % 32;
    return {source.data + (static_cast<std::size_t>(tile) * kTileRows + lane / 8) * args.stride +
                unit * kRowBytes + lane % 8 * 16,
            nullptr};
  }
  __device__ static void load(const LinearArgs& args, WeightPlace& place, std::uint32_t stage) {
    const int lane = threadIdx.x % 32;
    const std::byte* from = place.data;
    stage += piece_at(lane / 8, lane % 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_stream16(stage + i * 4 * kRowBytes, from);
      from += 4 * args.stride;
    }
    place.data += kRowBytes;
  }

  __device__ static void split(float a, float b, std::uint32_t& high, std::uint32_t& low) {
    if constexpr (kHalf) {
      const __half2 h = __floats2half2_rn(a, b);
      const __half2 l = __floats2half2_rn(a - __low2float(h), b - __high2float(h));
      high = reinterpret_cast<const std::uint32_t&>(h);
      low = reinterpret_cast<const std::uint32_t&>(l);
    } else {
      const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
      const __nv_bfloat162 l = __floats2bfloat162_rn(a - __low2float(h), b - __high2float(h));
      high = reinterpret_cast<const std::uint32_t&>(h);
      low = reinterpret_cast<const std::uint32_t&>(l);
    }
  }

  template <int kBatch>
  __device__ static void put(const Inputs& to, int row, int chunk, int count,
                             const float4 (&x)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i < count) put(to, row, (chunk + i) * kChunkInputs, x[i]);
    }
  }
  __device__ static void put(const Inputs& to, int row, int first, float4 x) {
    const int lane = threadIdx.x % 32, input = first + lane * 4;
    if constexpr (kHalf) {
      const PowerOfTwo power = scale_to_half(greatest<kUnit / 4>(x));
      if (lane % (kUnit / 4) == 0) to.scales[row * to.group_stride + input / kUnit] = power.inverse;
      x = {x.x * power.scale, x.y * power.scale, x.z * power.scale, x.w * power.scale};
    }
    uint2 hi, lo;
    split(x.x, x.y, hi.x, lo.x);
    split(x.z, x.w, hi.y, lo.y);
    *reinterpret_cast<uint2*>(to.at<2>(input, 2 * row)) = hi;
    *reinterpret_cast<uint2*>(to.at<2>(input, 2 * row + 1)) = lo;
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
      const int row = min(4 * n + t, args.num_rows - 1);
      lane.groups[n][0] = shared_address(inputs.scales + row * inputs.group_stride + first / kUnit);
    }
    return lane;
  }

  template <int kTiles>
  __device__ static void multiply(const LaneInputs<kTiles>& inputs, int unit, std::uint32_t stage,
                                  Sums<kTiles>& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Sums<kTiles> of_unit = {};
    Sums<kTiles>& dots = *(kHalf ? &of_unit : &sums);
    const auto chunk = [&]<int kChunk>() {
      const std::uint32_t place = stage + piece_at(g, 4 * kChunk + t);
      const uint4 a[2][2] = {
          {load_shared16(place), load_shared16<8 * kRowBytes>(place)},
          {load_shared16<kUnitBytes>(place), load_shared16<kUnitBytes + 8 * kRowBytes>(place)}};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = load_shared16<64 * kChunk>(inputs.values[n] + unit * (2 * kUnit));
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          const uint4 low = a[tile][0], high = a[tile][1];
          multiply(dots[tile][n], {low.x, high.x, low.y, high.y}, b.x, b.y);
          multiply(dots[tile][n], {low.z, high.z, low.w, high.w}, b.z, b.w);
        }
      }
    };
    chunk.template operator()<0>();
    chunk.template operator()<1>();
    if constexpr (kHalf) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float scale = __uint_as_float(load_shared4(inputs.groups[n][0] + unit * 4));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& sum = sums[i / 4][n][i % 4];
          sum = fmaf(dots[i / 4][n][i % 4], scale, sum);
        }
      }
    }
  }

  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
    if constexpr (kHalf) {
      mma_f16(c, a, b0, b1);
    } else {
      mma_bf16(c, a, b0, b1);
    }
  }

  // Calls f(activation row, row of the tile, sum).
  template <int kTiles, typename F>
  __device__ static void for_each_sum(const LinearArgs& args, const float (&sums)[kTiles][4],
                                      const F& f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int row = 4 * n + t;
      if (row >= args.num_rows) continue;
      f(row, g, sums[n][0] + sums[n][1]);
      f(row, g + 8, sums[n][2] + sums[n][3]);
    }
  }
};

// --- full precision, fp32 ------------------------------------------------------------------------

// For models that are kept so, small ones: on CUDA cores. A lane takes inputs 4 t .. 4 t + 3 of
// every 16 of rows g and g + 8; sums[n][0], [1] are of row g and activation rows 2 n, 2 n + 1.
struct Fp32Format {
  static constexpr int kUnit = 32;
  static constexpr int kTogether = 2;
  static constexpr int kStageUnits = 1;
  static constexpr int kColumns = 1;
  static constexpr int kInputBytes = 4;
  static constexpr int kPadding = 128;
  static constexpr int kChunkGroups = 0;
  static constexpr int kGroupBytes = 0;
  static constexpr bool kPlanes = false;
  static constexpr bool kOfEachOp = false;
  static constexpr int kRowBytes = 4 * kUnit;
  static constexpr int kUnitStep = kRowBytes;
  static constexpr int kUnitBytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = 2 * kUnitBytes;
  static constexpr int max_rows(int tiles) { return tiles * 2; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][4];

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    const int lane = threadIdx.x % 32;
    return {source.data + (static_cast<std::size_t>(tile) * kTileRows + lane / 8) * args.stride +
                unit * kRowBytes + lane % 8 * 16,
            nullptr};
  }
  __device__ static void load(const LinearArgs& args, WeightPlace& place, std::uint32_t stage) {
    stage += threadIdx.x % 32 * 16;
    for (int i = 0; i < kTileRows / 4; ++i) {
      copy_stream16(stage + i * 4 * kRowBytes, place.data + i * 4 * args.stride);
    }
    place.data += kRowBytes;
  }

  template <int kBatch>
  __device__ static void put(const Inputs& to, int row, int chunk, int count,
                             const float4 (&x)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = (chunk + i) * kChunkInputs + threadIdx.x % 32 * 4;
      if (i < count) *reinterpret_cast<float4*>(to.at<4>(input, row)) = x[i];
    }
  }

  // values[n]: of activation row 2 n, groups[n][1]: of the next.
  template <int kTiles>
  __device__ static LaneInputs<kTiles> lane_inputs(const LinearArgs&, const Inputs& inputs,
                                                   int first) {
    LaneInputs<kTiles> lane{};
    for (int n = 0; n < kTiles; ++n) {
      const int input = first + threadIdx.x % 4 * 4;
      lane.values[n] = shared_address(inputs.at<4>(input, min(2 * n, inputs.columns - 1)));
      lane.groups[n][1] = shared_address(inputs.at<4>(input, min(2 * n + 1, inputs.columns - 1)));
    }
    return lane;
  }

  template <int kTiles>
  __device__ static void multiply(const LaneInputs<kTiles>& inputs, int unit, std::uint32_t stage,
                                  Sums<kTiles>& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const auto dot = [](uint4 w, uint4 x, float sum) {
      sum = fmaf(__uint_as_float(w.x), __uint_as_float(x.x), sum);
      sum = fmaf(__uint_as_float(w.y), __uint_as_float(x.y), sum);
      sum = fmaf(__uint_as_float(w.z), __uint_as_float(x.z), sum);
      return fmaf(__uint_as_float(w.w), __uint_as_float(x.w), sum);
    };
#pragma unroll 1
    for (int i = 0; i < kRowBytes; i += 64) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const std::uint32_t place = stage + tile * kUnitBytes + g * kRowBytes + i + 16 * t;
        const uint4 low = load_shared16(place), high = load_shared16<8 * kRowBytes>(place);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint4 x = load_shared16(inputs.values[n] + unit * kRowBytes + i);
          const uint4 y = load_shared16(inputs.groups[n][1] + unit * kRowBytes + i);
          float(&c)[4] = sums[tile][n];
          c[0] = dot(low, x, c[0]);
          c[1] = dot(low, y, c[1]);
          c[2] = dot(high, x, c[2]);
          c[3] = dot(high, y, c[3]);
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
        const float sum = warp_sum(sums[n][i], 4);
        const int row = 2 * n + i % 2;
        if (t == 0 && row < args.num_rows) f(row, g + i / 2 * 8, sum);
      }
    }
  }
};

}  // namespace quantspec::cuda
