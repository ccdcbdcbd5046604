// How a warp takes tiles of 16 rows of weights, a few units of inputs at a time, from memory to
// sums.
//
// What a format has is the concept LinearFormat, below.
//
// Prepared activations lie in shared memory by column of B, in their order: lane 4 g + t reads 16
// bytes of column g with one load, of 64 bytes those from 16 t on, and those are B of two products.
// The order of the inputs within a product is free, so weights are taken in the same order. With 8
// bits to an input these are inputs 16 t .. 16 t + 15 of every 64. Of streamed ones, with 16 bits,
// 8 t .. 8 t + 7 of every 32 (8t, 8t + 1 and 8t + 2, 8t + 3; then 8t + 4 ..).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>

#include "backend/cuda/linear_args.h"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

// --- small things --------------------------------------------------------------------------------

__device__ __forceinline__ float warp_sum(float x, int width = 32) {
  for (int lane = 1; lane < width; lane *= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}
// The lanes of a group of kWidth that this one is in, 16 or 32 that begin at a multiple.
template <int kWidth>
__device__ __forceinline__ unsigned lanes_of_group() {
  return kWidth == 32 ? ~0u : 0xffffu << threadIdx.x % 32 / 16 * 16;
}
// The greatest magnitude among the inputs of kWidth lanes; a NaN is greater than infinity.
template <int kWidth>
__device__ __forceinline__ float greatest(float4 x) {
  const float own =
      max_or_nan(max_or_nan(fabsf(x.x), fabsf(x.y)), max_or_nan(fabsf(x.z), fabsf(x.w)));
  return __uint_as_float(__reduce_max_sync(lanes_of_group<kWidth>(), __float_as_uint(own)));
}

// The power of two that brings |x| <= max below 2^15, and its inverse; both finite, for every max.
struct PowerOfTwo {
  float scale, inverse;
};
__device__ __forceinline__ PowerOfTwo scale_to_half(float max) {
  // exponents: 268 - that of max, at most 253; 254 - that
  const std::uint32_t scale = min((~__float_as_uint(max) & 0x7f800000) + (13u << 23), 253u << 23);
  return {__uint_as_float(scale), __uint_as_float((254u << 23) - scale)};
}

// x[i]: four inputs of a row from `from` + i * kBandInputs on, zeros where `left` or more are
// before them. aligned: rows are, to 16 bytes.
// NOTE: past L1: it may hold what an earlier kernel read there, since this one started before the
// kernel that writes the row had ended.
template <int kCount>
__device__ __forceinline__ void load_inputs(const float* from, int left, bool aligned,
                                            float4 (&x)[kCount]) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = {};
      if (i * kBandInputs < left) {
        x[i] = __ldcg(reinterpret_cast<const float4*>(from + i * kBandInputs));
      }
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i * kBandInputs + j;
      const float next = at < left ? __ldcg(from + at) : 0.0f;
      x[i] = {x[i].y, x[i].z, x[i].w, next};
    }
  }
}
// The same from `first` on of a row, zeros from `end` on.
template <int kCount>
__device__ __forceinline__ void load_inputs(const float* row, int first, int end, bool aligned,
                                            float4 (&x)[kCount]) {
  load_inputs(row + first, end - first, aligned, x);
}

// The activations of a block of threads, in shared memory; input 0 is the first of the block.
struct Inputs {
  std::byte* values;  // [columns, stride] of Format::kInputBytes
  float4* groups;     // planes: [rows, group_stride]; of codes records
  int stride;
  int group_stride;
  int columns;  // activation rows * Format::kColumns

  template <int kBytes>
  __device__ std::byte* at(int input, int column) const {
    return values + (column * stride + input) * kBytes;
  }
};

// What a lane reads of them for tile n of B, by shared_address(), at the first input of its
// segment. Columns and rows beyond the last read the last: what comes of them is not used.
template <int kTiles>
struct LaneInputs {
  std::uint32_t values[kTiles];
  std::uint32_t groups[kTiles][2];  // planes: [n][0], of the row of sums [n]; fp32: below
};

// Where a lane's copies come from.
struct WeightPlace {
  const std::byte* data;
  const std::byte* lower;
};
// Of streamed activations.
struct InputPlace {
  const float* data;
  bool normed;   // whether the norm's weights come, too
  bool aligned;  // rows, to 16 bytes
  bool there;    // whether any may be read yet
};

// --- activations as integers of 16 bits ----------------------------------------------------------

// For the greatest magnitude of some activations: by a 64th of its power of two more, so that |x'|
// is below 2^15 - 128.
__device__ __forceinline__ PowerOfTwo activation_power(float max) {
  return scale_to_half(__uint_as_float(__float_as_uint(max) + (1 << 17)));
}
// x' = 256 hi + lo of four, a byte of each, and their sum.
struct ActivationBytes {
  std::uint32_t hi, lo;
  int sum;
};
__device__ __forceinline__ ActivationBytes activation_bytes(float4 x, float scale) {
  // x' + 128 is the low bits of a float of this magnitude: byte 1 is hi, byte 0 is lo + 128.
  constexpr float kOne = 0x1.8p23f + 128.0f;
  const auto rounded = [&](float v) { return __float_as_uint(fmaf(v, scale, kOne)); };
  const std::uint32_t a = rounded(x.x), b = rounded(x.y), c = rounded(x.z), d = rounded(x.w);
  const std::uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  return {__byte_perm(ab, cd, 0x7632), __byte_perm(ab, cd, 0x5410) ^ 0x80808080,
          static_cast<int>(a + b + c + d - 4 * __float_as_uint(kOne))};
}

// --- formats -------------------------------------------------------------------------------------

// Whether activations come with the weights, of a unit those of a unit; otherwise they are
// prepared.
template <typename Format>
inline constexpr bool kStreamed = Format::kStreamedBytes > 0;

template <typename Format>
concept SizedFormat = requires(int tiles) {
  { Format::kSizes } -> std::convertible_to<LinearSizes>;  // of which these are:
  requires Format::kUnit == Format::kSizes.unit;
  requires Format::kTogether == Format::kSizes.together;
  // The last stage of a segment may have fewer.
  requires Format::kStageUnits == Format::kSizes.stage_units;
  requires Format::kStageBytes == Format::kSizes.stage;
  requires Format::kStreamedBytes == Format::kSizes.streamed;
  requires Format::kPlanes == Format::kSizes.planes;
  // Bytes from unit to unit of a matrix, and of its lower plane.
  { Format::kUnitStep } -> std::convertible_to<int>;
  { Format::kLowerStep } -> std::convertible_to<int>;
  { Format::kOfEachOp } -> std::convertible_to<bool>;  // whether each op has kernels of its own
  { Format::max_rows(tiles) } -> std::same_as<int>;    // activation rows that so many tiles hold
  // What a lane holds of the sums of so many tiles of activations.
  typename Format::template Sums<1>;
};

// A warp's place in a tile; copies a unit there to a stage, asynchronously. (Bulk copies are of all
// units of a stage, load_bulk(), and are not in code for GPUs that have none.)
template <typename Format>
concept LoadedFormat = requires(const LinearArgs& args, const LinearSource& source,
                                WeightPlace& place, std::uint32_t stage, int i) {
  { Format::begin(args, source, i, i) } -> std::same_as<WeightPlace>;
  Format::load(args, place, stage);
};

// Puts bands of kBandInputs of an activation row into shared memory, 4 inputs of each lane: from
// `band` on, at most `count`. A lane reads them where lane_inputs() says.
template <typename Format>
concept PreparedFormat =
    !kStreamed<Format> &&
    requires(const LinearArgs& args, const Inputs& inputs, const float4 (&x)[4], int i) {
  requires Format::kColumns == Format::kSizes.columns;
  requires Format::kInputBytes == Format::kSizes.input;
  Format::template put<4>(inputs, i, i, i, x);
  Format::template lane_inputs<1>(args, inputs, i);  // what its multiply() takes
};

// Where a lane copies activations from; copies those of a unit to a stage, and the norm's weights;
// what a lane makes operands of.
template <typename Format>
concept StreamedFormat = kStreamed<Format> &&
    requires(const LinearArgs& args, const InputPlace& place, std::uint32_t stage, int i) {
  { Format::begin_inputs(args) } -> std::same_as<const float*>;
  Format::template load_inputs<1>(args, place, i, stage);
  typename Format::template OperandPlaces<1>;
};

// multiply() adds the products of a stage to the sums, and for_each_sum() says what a lane's sums
// of a tile belong to: the kernel calls both with functions of its own.
template <typename Format>
concept LinearFormat = SizedFormat<Format> && LoadedFormat<Format> &&
    (PreparedFormat<Format> || StreamedFormat<Format>);

}  // namespace quantspec::cuda
