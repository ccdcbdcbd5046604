#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_gemm.h"
#include "backend/params/pass.h"
#include "base/error.h"

// A product is a GEMM on rows that were normed and rounded to the weights' dtype before, and whose
// fp32 results a small kernel finishes:
//   qkv         norm | Q, K, V | per-head norms, RoPE, append
//   add_linear  round | x += W in
//   gate_up     norm | gate, up | silu(gate) * up
namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxHeadDim = 256;

__device__ void store(float* to, float x) { *to = x; }
__device__ void store(__half* to, float x) { *to = __float2half_rn(x); }
__device__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// W elements at once; the addresses are multiples of W elements.
template <typename T, int W>
struct alignas(W * sizeof(T)) Pack {
  T at[W];
};

__device__ float warp_sum(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// Over the block; every thread gets the sum.
__device__ float block_sum(float x) {
  __shared__ float partial[kWarps];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += partial[w];
  return sum;
}

__device__ float norm_factor(float sum_of_squares, int size, float epsilon) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(size) + epsilon);
}

// out[row] = norm(x[row]), rounded to T, zeros from cols on. A block per row.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    norm_rows(const float* x, int cols, int stride, Norm norm, T* out) {
  using Floats = Pack<float, W>;
  const float* row = x + static_cast<std::size_t>(blockIdx.x) * cols;
  T* to = out + static_cast<std::size_t>(blockIdx.x) * stride;
  float factor = 1.0f;
  if (norm.weight != nullptr) {
    float sum = 0.0f;
    for (int i = W * threadIdx.x; i < cols; i += W * kThreads) {
      const Floats v = *reinterpret_cast<const Floats*>(row + i);
#pragma unroll
      for (int j = 0; j < W; ++j) sum = fmaf(v.at[j], v.at[j], sum);
    }
    factor = norm_factor(block_sum(sum), cols, norm.epsilon);
  }
  for (int i = W * threadIdx.x; i < stride; i += W * kThreads) {
    Floats v{};
    if (i < cols) v = *reinterpret_cast<const Floats*>(row + i);
    Pack<T, W> rounded;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float weight = norm.weight != nullptr && i < cols ? norm.weight[i + j] : 1.0f;
      store(&rounded.at[j], v.at[j] * factor * weight);
    }
    *reinterpret_cast<Pack<T, W>*>(to + i) = rounded;
  }
}

// gate = silu(gate) * up
template <int W>
__global__ void __launch_bounds__(kThreads)
    silu_times(float* gate, const float* up, std::size_t n) {
  const std::size_t i = W * (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= n) return;
  auto g = *reinterpret_cast<const Pack<float, W>*>(gate + i);
  const auto u = *reinterpret_cast<const Pack<float, W>*>(up + i);
#pragma unroll
  for (int j = 0; j < W; ++j) g.at[j] = g.at[j] / (1.0f + expf(-g.at[j])) * u.at[j];
  *reinterpret_cast<Pack<float, W>*>(gate + i) = g;
}

// One head as a warp holds it: lane l has the pairs (c, c + half), c = l, l + 32, ...
struct HeadPairs {
  static constexpr int kPairs = kMaxHeadDim / 64;
  float low[kPairs], high[kPairs];

  __device__ void load(const float* head, int half) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int c = 32 * i + threadIdx.x % 32;
      low[i] = c < half ? head[c] : 0.0f;
      high[i] = c < half ? head[c + half] : 0.0f;
    }
  }
  template <typename T>
  __device__ void write(T* head, int half) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int c = 32 * i + threadIdx.x % 32;
      if (c >= half) continue;
      store(head + c, low[i]);
      store(head + c + half, high[i]);
    }
  }
  __device__ void apply(const Norm& norm, int half) {
    if (norm.weight == nullptr) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
    const float factor = norm_factor(warp_sum(sum), 2 * half, norm.epsilon);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int c = 32 * i + threadIdx.x % 32;
      if (c >= half) continue;
      low[i] = low[i] * factor * norm.weight[c];
      high[i] = high[i] * factor * norm.weight[c + half];
    }
  }
  // cos, sin: of the row, [half]
  __device__ void rotate(const float* cos, const float* sin, int half) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int c = 32 * i + threadIdx.x % 32;
      if (c >= half) continue;
      const float a = low[i], b = high[i];
      low[i] = fmaf(a, cos[c], -(b * sin[c]));
      high[i] = fmaf(b, cos[c], a * sin[c]);
    }
  }
};

// What makes queries or keys of projections: [num_heads] heads of head_dim in each row.
struct HeadRows {
  int num_heads;
  int head_dim;
  Norm norm;
  const float* cos;
  const float* sin;
};

// Per-head norm and RoPE in place. A warp per (row, head); `count` of these.
__global__ void __launch_bounds__(kThreads) finish_queries(HeadRows rows, int count, float* q) {
  const int task = blockIdx.x * kWarps + threadIdx.x / 32;
  if (task >= count) return;
  const int half = rows.head_dim / 2;
  const std::size_t angles = static_cast<std::size_t>(task / rows.num_heads) * half;
  float* head = q + static_cast<std::size_t>(task) * rows.head_dim;
  HeadPairs pairs;
  pairs.load(head, half);
  pairs.apply(rows.norm, half);
  pairs.rotate(rows.cos + angles, rows.sin + angles, half);
  pairs.write(head, half);
}

// Norm and RoPE of keys; keys and values of rows first_row + i go to the slots of positions
// first_position + i. A warp per (i, kv head); `count` of these.
__global__ void __launch_bounds__(kThreads)
    append(HeadRows rows, int count, int first_row, int first_position, const float* k,
           const float* v, FullKv kv) {
  const int task = blockIdx.x * kWarps + threadIdx.x / 32;
  if (task >= count) return;
  const int dim = rows.head_dim, half = dim / 2;
  const int i = task / rows.num_heads, kv_head = task % rows.num_heads;
  const std::size_t row = first_row + i;
  const std::size_t head = (row * rows.num_heads + kv_head) * dim;
  const int slot = (first_position + i) % kv.capacity;
  __half* keys = reinterpret_cast<__half*>(kv.data) +
                 (static_cast<std::size_t>(kv_head) * 2 * kv.capacity + slot) * dim;
  HeadPairs pairs;
  pairs.load(k + head, half);
  pairs.apply(rows.norm, half);
  pairs.rotate(rows.cos + row * half, rows.sin + row * half, half);
  pairs.write(keys, half);
  pairs.load(v + head, half);
  pairs.write(keys + static_cast<std::size_t>(kv.capacity) * dim, half);
}

int blocks(std::size_t count, int per_block) {
  return static_cast<int>((count + per_block - 1) / per_block);
}

template <typename T>
void launch_norm_rows(Device& device, const Norm& norm, const float* x, int rows, int cols,
                      std::byte* out) {
  const auto kernel = cols % 4 == 0 ? norm_rows<T, 4> : norm_rows<T, 1>;
  kernel<<<rows, kThreads, 0, device.stream()>>>(x, cols, padded_cols(cols), norm,
                                                 reinterpret_cast<T*>(out));
  require_launch("norm_rows");
}

// x as the GEMM wants it, [rows, padded_cols(cols)] of dtype.
void norm_rows_to(Device& device, DType dtype, const Norm& norm, const float* x, int rows, int cols,
                  std::byte* out) {
  switch (dtype) {
    case DType::kF32:
      return launch_norm_rows<float>(device, norm, x, rows, cols, out);
    case DType::kF16:
      return launch_norm_rows<__half>(device, norm, x, rows, cols, out);
    case DType::kBF16:
      return launch_norm_rows<__nv_bfloat16>(device, norm, x, rows, cols, out);
  }
}

std::size_t activation_bytes(DType dtype, int rows, int cols) {
  return static_cast<std::size_t>(rows) * padded_cols(cols) * size_of(dtype);
}

void check_weights(Phase phase, WeightRead weights) {
  check(phase == Phase::kPrefill && weights == WeightRead::kTarget,
        "prefill reads weights at full precision");
}

void launch_append(Device& device, const QkvParams& params, const float* k, const float* v) {
  const KvShape& shape = params.shape;
  const HeadRows rows{shape.num_kv_heads, shape.head_dim, params.k_norm, params.cos, params.sin};
  for (const SequenceRows& sequence : params.sequences) {
    check(sequence.num_rows <= sequence.kv.full.capacity, "every row has a slot of its own");
    const int count = sequence.num_rows * shape.num_kv_heads;
    append<<<blocks(count, kWarps), kThreads, 0, device.stream()>>>(
        rows, count, sequence.first_row, sequence.first_position, k, v, sequence.kv.full);
    require_launch("append");
  }
}

}  // namespace

void prefill_qkv(Device& device, const QkvParams& params) {
  check_weights(params.phase, params.weights);
  check(params.shape.head_dim <= kMaxHeadDim, "a head has 256 channels at most");
  const int rows = params.num_rows, inputs = params.k->inputs();
  if (rows == 0) return;
  const DType dtype = params.k->target.format.dtype;
  check(params.q->target.format == params.k->target.format &&
            params.v->target.format == params.k->target.format,
        "Q, K and V weights are of one dtype");
  const std::size_t x_bytes = activation_bytes(dtype, rows, inputs);
  const std::size_t kv_floats = static_cast<std::size_t>(rows) * params.k->outputs();
  std::byte* x = device.scratch(Scratch::kPrefill, x_bytes + 2 * kv_floats * sizeof(float));
  norm_rows_to(device, dtype, params.norm, params.x, rows, inputs, x);
  PrefillGemm& gemm = prefill_gemm(device);
  if (params.q_out != nullptr) {
    gemm.multiply(device, *params.q, x, rows, false, params.q_out);
    const int count = rows * params.num_heads;
    finish_queries<<<blocks(count, kWarps), kThreads, 0, device.stream()>>>(
        {params.num_heads, params.shape.head_dim, params.q_norm, params.cos, params.sin}, count,
        params.q_out);
    require_launch("finish_queries");
  }
  if (params.sequences.empty()) return;
  float* k = reinterpret_cast<float*>(x + x_bytes);
  gemm.multiply(device, *params.k, x, rows, false, k);
  gemm.multiply(device, *params.v, x, rows, false, k + kv_floats);
  launch_append(device, params, k, k + kv_floats);
}

void prefill_add_linear(Device& device, const AddLinearParams& params) {
  check_weights(params.phase, params.weights);
  const int rows = params.num_rows, inputs = params.linear->inputs();
  if (rows == 0) return;
  const DType dtype = params.linear->target.format.dtype;
  std::byte* in = device.scratch(Scratch::kPrefill, activation_bytes(dtype, rows, inputs));
  norm_rows_to(device, dtype, {}, params.in, rows, inputs, in);
  prefill_gemm(device).multiply(device, *params.linear, in, rows, true, params.x);
}

void prefill_gate_up(Device& device, const GateUpParams& params) {
  check_weights(params.phase, params.weights);
  const int rows = params.num_rows, inputs = params.gate->inputs();
  if (rows == 0) return;
  const DType dtype = params.gate->target.format.dtype;
  check(params.up->target.format == params.gate->target.format,
        "gate and up weights are of one dtype");
  const std::size_t x_bytes = activation_bytes(dtype, rows, inputs);
  const std::size_t count = static_cast<std::size_t>(rows) * params.gate->outputs();
  std::byte* x = device.scratch(Scratch::kPrefill, x_bytes + count * sizeof(float));
  norm_rows_to(device, dtype, params.norm, params.x, rows, inputs, x);
  float* up = reinterpret_cast<float*>(x + x_bytes);
  PrefillGemm& gemm = prefill_gemm(device);
  gemm.multiply(device, *params.gate, x, rows, false, params.out);
  gemm.multiply(device, *params.up, x, rows, false, up);
  const int width = count % 4 == 0 ? 4 : 1;
  const auto kernel = width == 4 ? silu_times<4> : silu_times<1>;
  kernel<<<blocks(count, width * kThreads), kThreads, 0, device.stream()>>>(params.out, up, count);
  require_launch("silu_times");
}

}  // namespace quantspec::cuda
