// What both kernels of prefill attention do with accumulators. A warp has 16 rows x N columns of
// scores (keys) or output (channels) as C fragments of 8 columns each (ptx.cuh): lane 4 g + t has
//     x[4 i], x[4 i + 1]       row g      columns 8 i + 2 t, 8 i + 2 t + 1
//     x[4 i + 2], x[4 i + 3]   row g + 8  the same
// so that r = 0, 1 below are its two rows.
#pragma once

#include <cmath>

#include "backend/cuda/prefill_attention.h"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

// Hides keys after a row's own position: of column c, first_key + c; of row r of the warp,
// first_visible + r.
template <int N>
__device__ __forceinline__ void mask_later(float (&s)[N], int first_key, int first_visible) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int last = first_visible + g - first_key - 2 * t;  // that row g sees, less 2 t
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * i + e > last) s[4 * i + e] = -INFINITY;
      if (8 * i + e > last + 8) s[4 * i + 2 + e] = -INFINITY;
    }
  }
}

// Over the 4 lanes of a row.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

template <int N>
__device__ __forceinline__ void rescale(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[4 * i + e] *= factor[e / 2];
  }
}

// The same where factors are mostly 1.
template <int N>
__device__ __forceinline__ void rescale_seldom(float (&o)[N], const float (&factor)[2]) {
  if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) rescale(o, factor);
}

// p as A operands of 16 columns each: lane and columns of a C fragment are those of half an A.
template <int N>
__device__ __forceinline__ void round_to_half(const float (&s)[N], std::uint32_t (&p)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const __half2 pair = __floats2half2_rn(s[2 * i], s[2 * i + 1]);
    p[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

// The softmax of a lane's two rows over the blocks of keys so far.
struct RowSoftmax {
  // How far a score may lie above `max`, so that few blocks raise it: fp16 holds 2^kSlack, and is
  // as exact there as at 1.
  static constexpr float kSlack = 8.0f;

  float max[2] = {-INFINITY, -INFINITY};  // of the row's scores, or less by up to kSlack
  float sum[2] = {0.0f, 0.0f};            // of the lane's own columns

  // Takes a block's scores: first the maximum of row r, then s from scores to 2^(score - max).
  // `factor`: what sums of blocks before are to be multiplied by; of each row its own.
  // REQUIRES: a row sees a key of the first block, so that max is finite.
  template <int N>
  __device__ __forceinline__ void raise_max(int r, const float (&s)[N], float (&factor)[2]) {
    float block_max = s[2 * r];
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      block_max = fmaxf(block_max, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
    }
    block_max = row_max(block_max);
    const float new_max = block_max > max[r] + kSlack ? block_max : max[r];
    factor[r] = exp2_approximately(max[r] - new_max);
    max[r] = new_max;
  }
  template <int N>
  __device__ __forceinline__ void exponentiate(int r, float (&s)[N], const float (&factor)[2]) {
    float block_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        s[4 * i + e] = exp2_approximately(s[4 * i + e] - max[r]);
        block_sum += s[4 * i + e];
      }
    }
    sum[r] = fmaf(sum[r], factor[r], block_sum);
  }

  // Both, of both rows.
  template <int N>
  __device__ __forceinline__ void update(float (&s)[N], float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raise_max(r, s, factor);
      exponentiate(r, s, factor);
    }
  }

  template <int N>
  __device__ __forceinline__ void finish(float (&o)[N]) const {
    const float factor[2] = {1.0f / row_sum(sum[0]), 1.0f / row_sum(sum[1])};
    rescale(o, factor);
  }
};

// o: rows first_row.. of a warp.
template <int D>
__device__ __forceinline__ void write_rows(const PrefillRows& rows, int head, int first_row,
                                           const float (&o)[D / 2]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + g + 8 * r;
    if (row >= rows.num_rows) continue;
    float* to = rows.out + (static_cast<std::size_t>(row) * rows.num_heads + head) * D + 2 * t;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      *reinterpret_cast<float2*>(to + 8 * i) = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
    }
  }
}

}  // namespace quantspec::cuda
