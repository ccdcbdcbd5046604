// How a warp takes tiles of 16 rows of weights, a few units of inputs at a time, from memory to
// sums.
//
// A Format has
//   kUnit            inputs of a unit
//   kUnitStep        bytes from a unit of a matrix, or of its upper plane, to the next
//   kTogether        tiles that a warp multiplies with what it reads of activations, 1 or 2
//   kStageUnits      units of a stage of a warp's ring, 1, or 2 of bulk copies; the last of a slice
//                    may have fewer
//   kStageBytes      of a stage: such units of each of the tiles
//   kStreamedBytes   of a stage, for each activation row, where activations come with the weights,
//                    see below; 0: they are prepared
//   max_rows()       activation rows that so many tiles hold
//   Sums             what a lane holds of the sums of the tiles
//   begin(), load()  a warp's place in a tile; copies a unit there to a stage, asynchronously
//                    (load_bulk(): all units of a stage)
//   multiply()       adds the products of a stage to the sums
//   for_each_sum()   what a lane's sums of a tile belong to
//   kOfEachOp        whether each op has a kernel of its own
//   kPlanes          whether it reads planes
// and, where activations are prepared,
//   kColumns         columns of B that an activation row takes
//   kInputBytes      of an activation in one column, in shared memory
//   kPadding         bytes that columns are longer than they need to be, so that 8 lanes that read
//                    two columns meet different banks
//   kChunkGroups     groups of kChunkInputs of a row; what is kept beside a group's activations has
//   kGroupBytes      so many bytes
//   put()            puts chunks of kChunkInputs of an activation row into shared memory, 4 inputs
//                    of each lane: from `chunk` on, at most `count`
//   LaneInputs       where a lane reads them: lane_inputs()
// and, where they are streamed,
//   begin_inputs()   where a lane copies activations from; copies those of a unit to a stage, and
//   load_inputs()    the norm's weights
//   Lane             what a lane makes operands of
//
// Prepared activations lie in shared memory by column of B, in their order: lane 4 g + t reads 16
// bytes of column g with one load, of 64 bytes those from 16 t on, and those are B of two products.
// The order of the inputs within a product is free, so weights are taken in the same order. With 8
// bits to an input these are inputs 16 t .. 16 t + 15 of every 64. Of streamed ones, with 16 bits,
// 8 t .. 8 t + 7 of every 32 (8t, 8t + 1 and 8t + 2, 8t + 3; then 8t + 4 ..).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/linear_args.h"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

inline constexpr int kChunkInputs = 128;  // that a warp prepares at a time

template <typename Format>
inline constexpr bool kStreamed = Format::kStreamedBytes > 0;

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

// x[i]: four inputs of a row from first + i * kChunkInputs on, zeros from `end` on. aligned: rows
// are, to 16 bytes.
// NOTE: past L1: it may hold what an earlier kernel read there, since this one started before the
// kernel that writes the row had ended.
template <int kCount>
__device__ __forceinline__ void load_inputs(const float* row, int first, int end, bool aligned,
                                            float4 (&x)[kCount]) {
  const float* const from = row + first;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = {};
      if (first + i * kChunkInputs < end) {
        x[i] = __ldcg(reinterpret_cast<const float4*>(from + i * kChunkInputs));
      }
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i * kChunkInputs + j;
      const float next = first + at < end ? __ldcg(from + at) : 0.0f;
      x[i] = {x[i].y, x[i].z, x[i].w, next};
    }
  }
}

// The activations of a block of threads, in shared memory; input 0 is the first of the block.
struct Inputs {
  std::byte* values;  // [columns, stride] of Format::kInputBytes
  float4* groups;     // planes: [rows, group_stride]
  int stride;
  int group_stride;
  int columns;  // activation rows * Format::kColumns

  template <int kBytes>
  __device__ std::byte* at(int input, int column) const {
    return values + (column * stride + input) * kBytes;
  }
};

// What a lane reads of them for tile n of B, by shared_address(), at the first input of its slice.
// Columns and rows beyond the last read the last: what comes of them is not used.
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

}  // namespace quantspec::cuda
