#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/full_kv_row.cuh"
#include "backend/cuda/linear_rows.h"
#include "backend/params/pass.h"
#include "base/error.h"

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
    norm_row(const float* x, int cols, int stride, Norm norm, T* out) {
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
    silu_times_up(float* gate, const float* up, std::size_t n) {
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
__global__ void __launch_bounds__(kThreads) finish_heads(HeadRows rows, int count, float* q) {
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

// Norm and RoPE of keys; keys and values of the rows of a sequence, from first_row on, go to its
// slots from first_position on. A warp per (row, kv head); `count` of these.
__global__ void __launch_bounds__(kThreads)
    append(HeadRows rows, int count, int first_row, const float* k, const float* v, KvShape shape,
           FullKv full, int first_position) {
  const int task = blockIdx.x * kWarps + threadIdx.x / 32;
  if (task >= count) return;
  const int half = rows.head_dim / 2, kv_head = task % rows.num_heads;
  const std::size_t row = first_row + task / rows.num_heads;
  const std::size_t head = (row * rows.num_heads + kv_head) * rows.head_dim;
  const FullKvRow to{full, first_position + task / rows.num_heads};
  HeadPairs pairs;
  pairs.load(k + head, half);
  pairs.apply(rows.norm, half);
  pairs.rotate(rows.cos + row * half, rows.sin + row * half, half);
  pairs.write(to.at(shape, kv_head, 0), half);
  pairs.load(v + head, half);
  pairs.write(to.at(shape, kv_head, 1), half);
}

int blocks(std::size_t count, int per_block) {
  return static_cast<int>((count + per_block - 1) / per_block);
}

template <typename T>
void launch_norm_rows(Device& device, const Norm& norm, const float* x, int rows, int cols,
                      std::byte* out) {
  const auto kernel = cols % 4 == 0 ? norm_row<T, 4> : norm_row<T, 1>;
  kernel<<<rows, kThreads, 0, device.stream()>>>(x, cols, padded_cols(cols), norm,
                                                 reinterpret_cast<T*>(out));
  require_launch("norm_rows");
}

}  // namespace

void norm_rows(Device& device, DType dtype, const Norm& norm, const float* x, int rows, int cols,
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

void silu_times(Device& device, std::size_t count, float* gate, const float* up) {
  const int width = count % 4 == 0 ? 4 : 1;
  const auto kernel = width == 4 ? silu_times_up<4> : silu_times_up<1>;
  kernel<<<blocks(count, width * kThreads), kThreads, 0, device.stream()>>>(gate, up, count);
  require_launch("silu_times");
}

void finish_queries(Device& device, const QkvParams& params) {
  const int count = params.num_rows * params.num_heads;
  finish_heads<<<blocks(count, kWarps), kThreads, 0, device.stream()>>>(
      {params.num_heads, params.shape.head_dim, params.q_norm, params.cos, params.sin}, count,
      params.q_out);
  require_launch("finish_queries");
}

void append_sequences(Device& device, const QkvParams& params, const float* k, const float* v) {
  const KvShape& shape = params.shape;
  const HeadRows rows{shape.num_kv_heads, shape.head_dim, params.k_norm, params.cos, params.sin};
  for (const SequenceRows& sequence : params.sequences) {
    check(sequence.num_rows <= sequence.kv.full.capacity, "every row has a slot of its own");
    const int count = sequence.num_rows * shape.num_kv_heads;
    if (count == 0) continue;
    append<<<blocks(count, kWarps), kThreads, 0, device.stream()>>>(
        rows, count, sequence.first_row, k, v, shape, sequence.kv.full, sequence.first_position);
    require_launch("append");
  }
}

}  // namespace quantspec::cuda
