// Products with planes of any format, on CUDA cores: fp32 sums of weights as decode_row() gives
// them. A block has a tile of outputs, and its warps take the spans of inputs in turn. Each output
// is a sum over the spans of a warp, then over lanes, then over warps: in the same order whatever
// the number of activation rows.
#include <algorithm>

#include "backend/cuda/device.h"
#include "backend/cuda/plane_codes.cuh"
#include "backend/cuda/products.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostRows = 8;  // that a weight is read for at a time

struct CodedProduct {
  const float* x;  // [rows, padded_cols(cols)]
  int rows;
  const float* bias;  // or null
  bool add;           // to what is there
  float* out;         // [rows, planes.rows]
};

// Adds the products of a lane's weights and rows of x, which begin at the lane's first input.
template <int kLowerBits, int kRows>
__device__ void add_products(const LaneCodes<kLowerBits>& codes, const float (&values)[16],
                             const float* const (&x)[kRows], int first, float (&sums)[2][kRows]) {
#pragma unroll
  for (int i = 0; i < kLaneInputs; i += 4) {
    float4 inputs[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      inputs[row] = *reinterpret_cast<const float4*>(x[row] + first + i);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = codes.weight(values, half, i + j);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float4 v = inputs[row];
        float& sum = sums[half][row];
        sum = fmaf(w[3], v.w, fmaf(w[2], v.z, fmaf(w[1], v.y, fmaf(w[0], v.x, sum))));
      }
    }
  }
}

// Block (tile, kRows activation rows).
template <int kLowerBits, int kRows>
__global__ void __launch_bounds__(kThreads)
    multiply(const __grid_constant__ CodedPlanes planes, const CodedProduct product) {
  __shared__ float values[16];
  __shared__ float partial[kWarps][kRows][kTileRows];
  share_values(planes, values);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stride = padded_cols(planes.cols), first_row = blockIdx.y * kRows;
  const float* x[kRows];  // rows beyond the last are the last
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const std::size_t index = min(first_row + row, product.rows - 1);
    x[row] = product.x + index * stride + lane % 4 * kLaneInputs;
  }
  float sums[2][kRows] = {};
  for (int span = warp; span * kSpanInputs < stride; span += kWarps) {
    const LaneCodes<kLowerBits> codes(planes, blockIdx.x, span, lane);
    add_products(codes, values, x, span * kSpanInputs, sums);
  }
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    float& sum = sums[i / kRows][i % kRows];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) partial[warp][i % kRows][i / kRows * 8 + lane / 4] = sum;
  }
  __syncthreads();
  const int own = threadIdx.x / kTileRows, row = first_row + own;
  const int of_tile = threadIdx.x % kTileRows, output = blockIdx.x * kTileRows + of_tile;
  if (own >= kRows || row >= product.rows || output >= planes.rows) return;
  float sum = product.bias == nullptr ? 0.0f : product.bias[output];
  for (int w = 0; w < kWarps; ++w) sum += partial[w][own][of_tile];
  float* const out = product.out + static_cast<std::size_t>(row) * planes.rows + output;
  *out = product.add ? *out + sum : sum;
}

}  // namespace

void multiply_codes(Device& device, const Matrix& matrix, WeightRead read, const float* bias,
                    const float* x, int rows, bool add, float* out) {
  const CodedPlanes planes(matrix, read);
  const CodedProduct product{x, rows, bias, add, out};
  with_lower_bits(matrix, read, [&]<int kLowerBits>() {
    const auto launch = [&]<int kRows>() {
      const dim3 grid(row_tiles(matrix.rows), divide_up(rows, kRows));
      multiply<kLowerBits, kRows><<<grid, kThreads, 0, device.stream()>>>(planes, product);
      require_launch("multiply_codes");
    };
    rows == 1   ? launch.template operator()<1>()
    : rows == 2 ? launch.template operator()<2>()
    : rows <= 4 ? launch.template operator()<4>()
                : launch.template operator()<kMostRows>();
  });
}

}  // namespace quantspec::cuda
