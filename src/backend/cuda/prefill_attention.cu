#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_attention.h"
#include "backend/params/attention.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// K and V of positions [0, end) in full precision, position p in slot p: what lies in pages is
// rounded to fp16.
FullKv gather(Device& device, const KvShape& shape, const KvView& view, int end, std::byte* to) {
  const FullKv all{to, round_up(end, 16)};
  load_pages(device, shape, view.layer, view.pages, all);
  copy_full_kv(device, shape, view.full, all, view.first_full, end - view.first_full);
  return all;
}

void check_view(const PrefillAttentionParams& params) {
  const KvView& kv = params.kv;
  check(kv.first_full == static_cast<int>(kv.pages.size()) * params.shape.page_size,
        "prefill attention reads in full precision what is in no page");
  check(kv.first_full <= params.first_position, "rows come after their pages");
  check(kv.pages.empty() || params.unpacked != nullptr, "pages are unpacked to memory");
  check(params.first_position + params.num_rows - kv.first_full <= kv.full.capacity,
        "every position after the pages has a slot");
  check(kv.read == KvRead::kBoth && kv.page_lists.empty() && kv.num_gathered == 0 &&
            kv.page_mass.data == nullptr,
        "prefill attention reads all pages at 8 bits, and nothing else");
}

}  // namespace

std::size_t unpacked_bytes(const KvShape& shape, int tokens) {
  return full_kv_index(shape, round_up(tokens, 16), shape.num_kv_heads, 0, 0) * sizeof(__half);
}

void prefill_attention(Device& device, const PrefillAttentionParams& params) {
  check_view(params);
  if (params.num_rows == 0) return;
  const int end = params.first_position + params.num_rows;
  const FullKv kv = params.kv.pages.empty()
                        ? params.kv.full
                        : gather(device, params.shape, params.kv, end, params.unpacked);
  constexpr float kLog2E = 1.44269504f;
  const PrefillRows rows{.q = params.q,
                         .q_factor = params.scale * kLog2E,
                         .out = params.out,
                         .kv = reinterpret_cast<const __half*>(kv.data),
                         .capacity = kv.capacity,
                         .head_dim = params.shape.head_dim,
                         .num_heads = params.num_heads,
                         .num_kv_heads = params.shape.num_kv_heads,
                         .first_position = params.first_position,
                         .num_rows = params.num_rows};
  if (wgmma_attends(device, rows.head_dim)) return attend_by_wgmma(device, rows);
  attend_by_mma(device, rows);
}

}  // namespace quantspec::cuda
