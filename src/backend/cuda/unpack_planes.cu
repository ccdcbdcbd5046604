#include <cuda_bf16.h>

#include "backend/cuda/device.h"
#include "backend/cuda/plane_codes.cuh"
#include "backend/cuda/products.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Rows [first, first + count), rounded to bf16, [count, padded_cols(cols)] with zeros beyond. Block
// (some spans, tile); a warp per span.
template <int kLowerBits>
__global__ void __launch_bounds__(kThreads)
    unpack(const __grid_constant__ CodedPlanes planes, int first, int count, __nv_bfloat16* out) {
  __shared__ float values[16];
  share_values(planes, values);
  const int stride = padded_cols(planes.cols), lane = threadIdx.x % 32;
  const int span = blockIdx.x * kWarps + threadIdx.x / 32;
  if (span * kSpanInputs >= stride) return;
  const LaneCodes<kLowerBits> codes(planes, first / kTileRows + blockIdx.y, span, lane);
  const int col = span * kSpanInputs + lane % 4 * kLaneInputs;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = blockIdx.y * kTileRows + half * 8 + lane / 4;
    if (row >= count) return;
    alignas(16) __nv_bfloat16 weights[kLaneInputs];
#pragma unroll
    for (int i = 0; i < kLaneInputs; ++i) {
      weights[i] =
          __float2bfloat16_rn(col + i < planes.cols ? codes.weight(values, half, i) : 0.0f);
    }
    auto* const to = reinterpret_cast<uint4*>(out + static_cast<std::size_t>(row) * stride + col);
    to[0] = reinterpret_cast<const uint4*>(weights)[0];
    to[1] = reinterpret_cast<const uint4*>(weights)[1];
  }
}

}  // namespace

void unpack_rows(Device& device, const Matrix& matrix, int first, int count, std::byte* out) {
  check(first % kTileRows == 0, "whole tiles");
  const dim3 grid(divide_up(padded_cols(matrix.cols) / kSpanInputs, kWarps), row_tiles(count));
  with_lower_bits(matrix, WeightRead::kTarget, [&]<int kLowerBits>() {
    unpack<kLowerBits>
        <<<grid, kThreads, 0, device.stream()>>>(CodedPlanes(matrix, WeightRead::kTarget), first,
                                                 count, reinterpret_cast<__nv_bfloat16*>(out));
    require_launch("unpack_rows");
  });
}

}  // namespace quantspec::cuda
