// How a warp takes two tiles of 16 rows of weights, one unit of inputs at a time, from memory to
// sums.
//
// A Format has
//   kUnit            inputs of a unit
//   kColumns         columns of B that an activation row takes
//   kInputBytes      of an activation in one column, in shared memory
//   kPlanes          whether it reads planes
//   kGroupBytes      of what is kept beside them, for each row and 64 inputs
//   max_rows()       activation rows that so many n8 tiles of B hold
//   unit_bytes()     of a tile in a stage
//   begin(), load()  a lane's place in a tile; copies the unit there to a stage, asynchronously
//   put()            puts kChunkInputs of an activation row into shared memory, 4 of each lane
//   multiply()       adds the products of a unit of both tiles to their sums
//   for_each_sum()   what a lane's sums belong to
//
// Activations lie in shared memory by column of B, in their order: lane 4 g + t reads inputs 8 t ..
// 8 t + 7 of every 32 of column g with one load, and those are B of two steps of 16 inputs (b0 =
// 8t, 8t + 1; b1 = 8t + 2, 8t + 3; then 8t + 4 ..): the order of the inputs within a product is
// free, so weights are taken in the same order. Columns are 32 inputs longer than they need to be,
// so that 8 lanes that read two columns meet different banks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/linear_args.h"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

inline constexpr int kChunkInputs = 128;  // that a warp prepares at a time

// --- small things --------------------------------------------------------------------------------

__device__ __forceinline__ float warp_sum(float x, int width = 32) {
  for (int lane = 1; lane < width; lane *= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}
// The greatest magnitude among the inputs of `width` lanes, 16 or 32 that begin at a multiple.
__device__ __forceinline__ float greatest(float4 x, int width) {
  const float own = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  const unsigned lanes = width == 32 ? ~0u : 0xffffu << threadIdx.x % 32 / 16 * 16;
  return __uint_as_float(__reduce_max_sync(lanes, __float_as_uint(own)));
}

// The power of two that brings |x| <= max below 2^15, and its inverse; both finite, for every max.
struct PowerOfTwo {
  float scale, inverse;
};
__device__ __forceinline__ PowerOfTwo scale_to_half(float max) {
  const int exponent = __float_as_int(max) >> 23 & 255;
  const int biased = min(268 - exponent, 253);
  return {__int_as_float(biased << 23), __int_as_float((254 - biased) << 23)};
}

// Four inputs of a row of `size` from `first` on, zeros beyond.
// NOTE: past L1: it may hold what an earlier kernel read there, since this one started before the
// kernel that writes the row had ended.
__device__ __forceinline__ float4 load_inputs(const float* row, int first, int size) {
  if (size % 4 == 0) {
    return first < size ? __ldcg(reinterpret_cast<const float4*>(row + first)) : float4{};
  }
  const auto at = [&](int i) { return first + i < size ? __ldcg(row + first + i) : 0.0f; };
  return {at(0), at(1), at(2), at(3)};
}

// The activations of a block of threads, in shared memory; input 0 is the first of the block.
struct Inputs {
  std::byte* values;  // [columns, stride] of Format::kInputBytes
  float4* groups;     // planes: [rows, group_stride]
  float* scales;      // fp16: [rows, group_stride], what sums of a unit are multiplied with
  int stride;
  int group_stride;
  int columns;  // activation rows * Format::kColumns

  template <int kBytes>
  __device__ std::byte* at(int input, int column) const {
    return values + (column * stride + input) * kBytes;
  }
};

// Of each of two tiles and n8 tiles of B, what a lane holds of C.
template <int kTiles>
using TileSums = float[2][kTiles][4];

// What a lane reads of them for tile n of B, by shared_address(), at the first input of its slice.
// Columns and rows beyond the last read the last: what comes of them is not used.
template <int kTiles>
struct LaneInputs {
  std::uint32_t values[kTiles];
  std::uint32_t groups[kTiles][2];  // planes: of the rows of sums [n][0] and [n][1]; fp16: scales
};

// Where a lane's copies come from.
struct WeightPlace {
  const std::byte* data;
  const std::byte* lower;
};

}  // namespace quantspec::cuda
