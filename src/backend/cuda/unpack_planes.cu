#include <cuda_bf16.h>

#include "backend/cuda/device.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/plane_codes.cuh"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// As unpack_rows(). Block (some spans, tile); a warp per span.
template <int kLowerBits>
__global__ void __launch_bounds__(kThreads)
    unpack(const __grid_constant__ CodedPlanes planes, int first, int count, __nv_bfloat16* out,
           int stride) {
  __shared__ float values[16];
  share_values(planes, values);
  const int lane = threadIdx.x % 32, span = blockIdx.x * kWarps + threadIdx.x / 32;
  if (span * kSpanInputs >= padded_cols(planes.cols)) return;
  const LaneCodes<kLowerBits> codes(planes, first / kTileRows + blockIdx.y, span, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = blockIdx.y * kTileRows + half * 8 + lane / 4;
    if (row >= count) return;
    __nv_bfloat16* const to = out + static_cast<std::size_t>(row) * stride;
#pragma unroll
    for (int i = 0; i < kLaneInputs; i += 4) {
      const int col = span * kSpanInputs + lane_input(planes.layout.group, lane % 4, i);
      alignas(8) __nv_bfloat16 weights[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        weights[j] =
            __float2bfloat16_rn(col + j < planes.cols ? codes.weight(values, half, i + j) : 0.0f);
      }
      *reinterpret_cast<uint2*>(to + col) = *reinterpret_cast<const uint2*>(weights);
    }
  }
}

}  // namespace

void unpack_rows(Device& device, const Matrix& matrix, int first, int count, std::byte* out,
                 int stride) {
  check(first % kTileRows == 0, "whole tiles");
  const dim3 grid(divide_up(padded_cols(matrix.cols) / kSpanInputs, kWarps), row_tiles(count));
  with_lower_bits(matrix, [&]<int kLowerBits>() {
    unpack<kLowerBits><<<grid, kThreads, 0, device.stream()>>>(
        CodedPlanes(matrix), first, count, reinterpret_cast<__nv_bfloat16*>(out), stride);
    require_launch("unpack_rows");
  });
}

}  // namespace quantspec::cuda
