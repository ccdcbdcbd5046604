#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_attention.h"
#include "base/error.h"

namespace quantspec::cuda {

void prefill_attention(Device& device, const PrefillAttentionParams& params) {
  check(params.kv.pages.empty(), "prefill attention reads no pages yet");
  check(params.first_position + params.num_rows <= params.kv.full.capacity,
        "prefill attention needs every position in the full-precision K and V");
  if (params.num_rows == 0) return;
  constexpr float kLog2E = 1.44269504f;
  const PrefillRows rows{.q = params.q,
                         .q_factor = params.scale * kLog2E,
                         .out = params.out,
                         .kv = reinterpret_cast<const __half*>(params.kv.full.data),
                         .capacity = params.kv.full.capacity,
                         .head_dim = params.shape.head_dim,
                         .num_heads = params.num_heads,
                         .num_kv_heads = params.shape.num_kv_heads,
                         .first_position = params.first_position,
                         .num_rows = params.num_rows};
  if (wgmma_attends(device, rows.head_dim)) return attend_by_wgmma(device, rows);
  attend_by_mma(device, rows);
}

}  // namespace quantspec::cuda
