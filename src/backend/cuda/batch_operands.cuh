// Activations as the matrix units take them beside weights of bf16 (batch_linear.cu).
#pragma once

#include "backend/cuda/linear_full.cuh"

namespace quantspec::cuda {

// Weights are bf16; a unit is 64 inputs.
using BatchFormat = FullFormat<__nv_bfloat16>;
inline constexpr int kBatchSteps = BatchFormat::kUnit / 16;  // products of a unit

// Operands of a unit: [16 inputs][8 rows][hi, lo][8 of 16 places][row of 8][16 bytes], so that
// 8 rows of 8 places are a core matrix (wgmma.cuh). Places are those that inputs have in the
// products of FullFormat: lane 4 g + t has inputs 8 t .. 8 t + 7 of every 32 of row g.
inline constexpr int kMatrixBytes = 128;
inline constexpr int kGroupBytes = 2 * 2 * kMatrixBytes;  // of 8 activation rows and 16 inputs
constexpr int operand_bytes(int rows) { return rows / 8 * kGroupBytes * kBatchSteps; }

// First unit of a segment; of segment kSegments: where the last one ends.
__device__ __forceinline__ int first_unit(int bands, int units, int segment) {
  constexpr int kUnits = kBandInputs / BatchFormat::kUnit;
  return min(segment_begin(bands, BatchFormat::kSizes.band_step(), kSegments, segment) * kUnits,
             units);
}

struct OperandArgs {
  const float* x;  // of the first row
  int x_stride, cols, num_rows;
  int units, bands;
  const float* norm;  // weights or null
  std::byte* operands;
  float* squares;  // [kSegments, 8 * gridDim.x], sums of a segment
};

inline constexpr int kOperandWarps = 8;  // a unit each

// A lane's inputs of a unit.
__device__ __forceinline__ void load_unit(const float* row, int unit, int cols, bool aligned,
                                          float4 (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float4 part[1];
    load_inputs(row, unit * BatchFormat::kUnit + i / 2 * 32 + threadIdx.x % 4 * 8 + i % 2 * 4, cols,
                aligned, part);
    x[i] = part[0];
  }
}

// A block has kOperandWarps units of a segment of 8 rows. The first of a segment adds up squares,
// in the order of units.
// NOTE: the kernel after it reads nothing early but weights, so it may come at once.
__global__ void __launch_bounds__(32 * kOperandWarps)
    make_operands(const __grid_constant__ OperandArgs args) {
  __shared__ float4 shared[kOperandWarps][4][32];
  const int lane = threadIdx.x % 32, warp = warp_index();
  const int groups = gridDim.x, row = 8 * blockIdx.x + lane / 4, segment = blockIdx.y;
  const int first = first_unit(args.bands, args.units, segment);
  const int end = first_unit(args.bands, args.units, segment + 1);
  const int own = first + kOperandWarps * blockIdx.z + warp;
  const bool there = row < args.num_rows, normed = args.norm != nullptr;
  const bool aligned = args.x_stride % 4 == 0;
  const float* const from = args.x + static_cast<std::ptrdiff_t>(row) * args.x_stride;
  let_next_kernel_start();
  float4 x[4] = {}, weights[4];
  if (normed && own < end) load_unit(args.norm, own, args.cols, aligned, weights);
  wait_for_previous_kernels();
  if (there && own < end) load_unit(from, own, args.cols, aligned, x);
  if (normed && blockIdx.z == 0) {
    float square = 0.0f;
    float4 next[4] = {x[0], x[1], x[2], x[3]};
    for (int unit = own;;) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared[warp][i][lane] = next[i];
      __syncthreads();
      const int left = end - unit;  // of warp 0
      for (int i = 0; warp == 0 && i < min(left, kOperandWarps); ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 v = shared[i][j][lane];
          square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
        }
      }
      unit += kOperandWarps;
      if (unit - warp >= end) break;
      if (there && unit < end) load_unit(from, unit, args.cols, aligned, next);
      __syncthreads();
    }
    square = warp_sum(square, 4);
    if (threadIdx.x < 32 && threadIdx.x % 4 == 0) {
      args.squares[segment * 8 * groups + row] = square;
    }
  }
  if (own >= end) return;
  std::byte* to =
      args.operands +
      (static_cast<std::size_t>(own) * kBatchSteps * groups + blockIdx.x) * kGroupBytes + lane * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float4 v = x[i];
    if (normed) {
      const float4 w = weights[i];
      v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
    std::uint32_t high[2], low[2];
    BatchFormat::split(v.x, v.y, high[0], low[0]);
    BatchFormat::split(v.z, v.w, high[1], low[1]);
#pragma unroll
    for (int places = 0; places < 2; ++places) {
      std::byte* const matrix = to + places * kMatrixBytes;
      *reinterpret_cast<std::uint32_t*>(matrix) = high[places];
      *reinterpret_cast<std::uint32_t*>(matrix + 2 * kMatrixBytes) = low[places];
    }
    to += groups * kGroupBytes;
  }
}

}  // namespace quantspec::cuda
