// The last step of batch_op.cuh where sums come to memory as several nodes, or where what an op
// does is more than its warps have at hand.
#pragma once

#include "backend/cuda/full_kv_row.cuh"
#include "backend/cuda/linear_finish.cuh"

namespace quantspec::cuda {

constexpr int kFinishThreads = kLinearThreads;

// Sums of all segments. kNodes: of a sum. A column is an output of the matrices, tiles of all one
// after the other.
struct BatchSums {
  const float* nodes;    // [kNodes, rows, columns]
  const float* squares;  // [kSegments, square_stride]; null: no norm
  int rows, columns, square_stride;
  int up_column;  // of gate and up: the first of up; 0: 8 columns of each by turns

  // Of V's columns, a float or four: add(a, b) adds them.
  template <int kNodes, typename V, typename Add>
  __device__ V at(int row, int column, const Add& add) const {
    const float* const from = nodes + static_cast<std::size_t>(row) * columns + column;
    const std::size_t stride = static_cast<std::size_t>(rows) * columns;
    V parts[kNodes];
#pragma unroll
    for (int i = 0; i < kNodes; ++i) {
      parts[i] = __ldcg(reinterpret_cast<const V*>(from + i * stride));
    }
#pragma unroll
    for (int step = 1; step < kNodes; step *= 2) {
#pragma unroll
      for (int i = 0; i < kNodes; i += 2 * step) add(parts[i], parts[i + step]);
    }
    return parts[0];
  }
  template <int kNodes>
  __device__ float one_at(int row, int column) const {
    return at<kNodes, float>(row, column, [](float& a, float b) { a += b; });
  }
  template <int kNodes>
  __device__ float4 four_at(int row, int column) const {
    return at<kNodes, float4>(row, column, [](float4& a, const float4& b) {
      a = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    });
  }
  __device__ float factor(const LinearArgs& args, int row) const {
    if (squares == nullptr) return 1.0f;
    float parts[kSegments];
#pragma unroll
    for (int i = 0; i < kSegments; ++i) parts[i] = __ldcg(squares + i * square_stride + row);
    return norm_factor(sum_of_segments(parts), args.cols, args.norm.epsilon);
  }
};

__device__ __forceinline__ float4 operator*(const float4& a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}
__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
// Up to four of a row: `count`, whole if it is whole.
__device__ __forceinline__ float4 load_some(const float* from, int count, bool whole) {
  if (whole) return __ldcg(reinterpret_cast<const float4*>(from));
  return {__ldcg(from), count > 1 ? __ldcg(from + 1) : 0.0f, count > 2 ? __ldcg(from + 2) : 0.0f,
          count > 3 ? __ldcg(from + 3) : 0.0f};
}

// kStore, kAdd, kGateUp: a thread has four outputs of a row, blockIdx.y.
template <int kOp, int kNodes>
__global__ void __launch_bounds__(kFinishThreads)
    finish_batch(const __grid_constant__ LinearArgs args, const BatchSums sums) {
  constexpr bool kGateUp = kOp == static_cast<int>(LinearOp::kGateUp);
  constexpr bool kAdd = kOp == static_cast<int>(LinearOp::kAdd);
  const int row = blockIdx.y, outputs = args.sources[0].outputs;
  const int output = 4 * (blockIdx.x * kFinishThreads + threadIdx.x);
  const int count = min(outputs - output, 4);
  const bool whole = outputs % 4 == 0;
  const auto bias = [&](int source) {
    const float* const from = args.sources[source].bias;
    return from != nullptr ? load_some(from + output, count, whole) : float4{};
  };
  float* const out = args.out + static_cast<std::size_t>(args.first_row + row) * outputs + output;
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (count <= 0) return;
  float4 result;
  if constexpr (kGateUp) {
    const bool by_turns = sums.up_column == 0;
    const int column = by_turns ? output / 8 * kTileRows + output % 8 : output;
    const int up_column = column + (by_turns ? kTileRows / 2 : sums.up_column);
    float4 gate = sums.four_at<kNodes>(row, column), up = sums.four_at<kNodes>(row, up_column);
    const float factor = sums.factor(args, row);
    gate = gate * factor;
    up = up * factor;
    if (args.sources[0].bias != nullptr) gate = gate + bias(0);
    if (args.sources[1].bias != nullptr) up = up + bias(1);
    result = {gated(gate.x, up.x), gated(gate.y, up.y), gated(gate.z, up.z), gated(gate.w, up.w)};
  } else {
    const float4 before = kAdd ? load_some(out, count, whole) : float4{};
    result = sums.four_at<kNodes>(row, output) * sums.factor(args, row) + (bias(0) + before);
  }
  if (whole) {
    *reinterpret_cast<float4*>(out) = result;
    return;
  }
  const float values[4] = {result.x, result.y, result.z, result.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) out[i] = values[i];
  }
}

// kQkv: a warp has a head of a row. Lane l has pairs l, l + 32, .. of its channels c and
// c + head_dim / 2; all that it reads is asked for at once.
template <int kNodes>
__global__ void __launch_bounds__(kFinishThreads)
    finish_batch_qkv(const __grid_constant__ LinearArgs args, const BatchSums sums, int heads) {
  constexpr int kPairs = 4;
  const QkvArgs& qkv = args.qkv;
  const int dim = qkv.shape.head_dim, half = dim / 2, lane = threadIdx.x % 32;
  const int task = blockIdx.x * (kFinishThreads / 32) + warp_index();
  const int own_row = task / heads, row = args.first_row + own_row;
  int head = task - own_row * heads, source = 0, column = 0;
  while (source < kMaxSources - 1 && head >= args.sources[source].outputs / dim) {
    head -= args.sources[source].outputs / dim;
    column += args.sources[source++].outputs;
  }
  const int first = head * dim;
  const bool rotated = source < 2;
  const float* const bias = args.sources[source].bias;
  const Norm norm = rotated ? qkv.norms[source] : Norm{};
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (own_row >= args.num_rows) return;
  FullKvRow kv{{}, -1};
  if (source > 0) kv = FullKvRow::of(qkv.sequences, row);
  const float row_factor = sums.factor(args, own_row);
  float low[kPairs], high[kPairs], cos[kPairs] = {}, sin[kPairs] = {};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int channel = 32 * i + lane;
    if (channel >= half) break;
    low[i] = sums.one_at<kNodes>(own_row, column + first + channel);
    high[i] = sums.one_at<kNodes>(own_row, column + first + channel + half);
    if (rotated) {
      const std::size_t angle = static_cast<std::size_t>(row) * half + channel;
      cos[i] = __ldcg(qkv.cos + angle);
      sin[i] = __ldcg(qkv.sin + angle);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int channel = 32 * i + lane;
    if (channel >= half) break;
    low[i] *= row_factor;
    high[i] *= row_factor;
    if (bias != nullptr) {
      low[i] += bias[first + channel];
      high[i] += bias[first + channel + half];
    }
    squares = fmaf(low[i], low[i], fmaf(high[i], high[i], squares));
  }
  float factor = 1.0f;
  if (norm.weight != nullptr) {
    factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + norm.epsilon);
  }
  __half* const to_kv =
      kv.position >= 0 ? kv.at(qkv.shape, head, source - 1) : static_cast<__half*>(nullptr);
  float* const to_q = args.out + static_cast<std::size_t>(row) * args.sources[0].outputs + first;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int channel = 32 * i + lane;
    if (channel >= half) break;
    if (norm.weight != nullptr) {
      low[i] *= factor * norm.weight[channel];
      high[i] *= factor * norm.weight[channel + half];
    }
    if (rotated) {
      const float turned = fmaf(low[i], cos[i], -(high[i] * sin[i]));
      high[i] = fmaf(high[i], cos[i], low[i] * sin[i]);
      low[i] = turned;
    }
    if (source == 0) {
      to_q[channel] = low[i];
      to_q[channel + half] = high[i];
    } else if (to_kv != nullptr) {
      to_kv[channel] = __float2half_rn(low[i]);
      to_kv[channel + half] = __float2half_rn(high[i]);
    }
  }
}

}  // namespace quantspec::cuda
