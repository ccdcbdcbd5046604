#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_attention.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;

// 4 elements a thread
__global__ void scale_queries(const float* q, float factor, int count, __half* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 x = reinterpret_cast<const float4*>(q)[i];
  auto* to = reinterpret_cast<__half2*>(out) + 2 * static_cast<std::size_t>(i);
  to[0] = __floats2half2_rn(x.x * factor, x.y * factor);
  to[1] = __floats2half2_rn(x.z * factor, x.w * factor);
}

}  // namespace

void prefill_attention(Device& device, const PrefillAttentionParams& params) {
  check(params.first_position + params.num_rows <= params.kv.capacity,
        "prefill attention needs every position in the full-precision K and V");
  if (params.num_rows == 0) return;
  constexpr float kLog2E = 1.44269504f;
  const int dim = params.shape.head_dim;
  const std::size_t count = static_cast<std::size_t>(params.num_rows) * params.num_heads * dim;
  auto* q = reinterpret_cast<__half*>(device.scratch(Scratch::kPrefill, count * sizeof(__half)));
  const int quads = static_cast<int>(count / 4);
  scale_queries<<<(quads + kThreads - 1) / kThreads, kThreads, 0, device.stream()>>>(
      params.q, params.scale * kLog2E, quads, q);
  require_launch("scale_queries");
  const PrefillRows rows{.q = q,
                         .out = params.out,
                         .kv = reinterpret_cast<const __half*>(params.kv.data),
                         .capacity = params.kv.capacity,
                         .head_dim = dim,
                         .num_heads = params.num_heads,
                         .num_kv_heads = params.shape.num_kv_heads,
                         .first_position = params.first_position,
                         .num_rows = params.num_rows};
  if (wgmma_attends(device, dim)) return attend_by_wgmma(device, rows);
  attend_by_mma(device, rows);
}

}  // namespace quantspec::cuda
