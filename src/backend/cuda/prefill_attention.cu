#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_attention.h"
#include "backend/cuda/ranks.h"
#include "backend/params/attention.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// KV heads that the queries of this rank read.
KvHeads own_kv_heads(const Device& device, const KvShape& shape) {
  if (shape.context_ranks == 1) return {0, shape.num_kv_heads};
  const Ranks& ranks = *device.ranks();
  const int count = shape.num_kv_heads / ranks.shares_of_context();
  return {ranks.share() % ranks.shares_of_context() * count, count};
}

// The same of KV heads from `first` on.
FullKv from_head(const KvShape& shape, FullKv kv, int first) {
  kv.data += sizeof(__half) * full_kv_index(shape, kv.capacity, first, 0, 0);
  return kv;
}

// What each rank of the context has, from its memory. Two meetings: when all pages are written, and
// when nobody reads them any more.
void load_pages_of_ranks(Device& device, const KvShape& shape, const KvHeads& heads,
                         const KvView& view, FullKv to) {
  Ranks& ranks = *device.ranks();
  const auto tables = ranks.pages_of_context(view.pages);
  ranks.meet_on_gpus();
  KvShape theirs = shape;
  for (int rank = 0; rank < shape.context_ranks; ++rank) {
    theirs.context_rank = rank;
    load_pages(device, theirs, heads, view.layer, {tables[rank], view.pages.size()}, to);
  }
  ranks.meet_on_gpus();
}

// K and V of positions [0, end) in full precision, position p in slot p: what lies in pages is
// rounded to fp16.
FullKv gather(Device& device, const KvShape& shape, const KvHeads& heads, const KvView& view,
              int end, std::byte* to) {
  const FullKv all{to, round_up(end, 16)};
  if (shape.context_ranks == 1) {
    load_pages(device, shape, heads, view.layer, view.pages, all);
  } else {
    load_pages_of_ranks(device, shape, heads, view, all);
  }
  KvShape own = shape;
  own.num_kv_heads = heads.count;
  copy_full_kv(device, own, from_head(shape, view.full, heads.first), all, view.first_full,
               end - view.first_full);
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

std::size_t unpacked_bytes(const KvShape& shape, int own_kv_heads, int tokens) {
  return full_kv_index(shape, round_up(tokens, 16), own_kv_heads, 0, 0) * sizeof(__half);
}

void prefill_attention(Device& device, const PrefillAttentionParams& params) {
  check_view(params);
  if (params.num_rows == 0) return;
  const int end = params.first_position + params.num_rows;
  const KvHeads heads = own_kv_heads(device, params.shape);
  const FullKv kv = params.kv.pages.empty()
                        ? from_head(params.shape, params.kv.full, heads.first)
                        : gather(device, params.shape, heads, params.kv, end, params.unpacked);
  constexpr float kLog2E = 1.44269504f;
  const PrefillRows rows{.q = params.q,
                         .q_factor = params.scale * kLog2E,
                         .out = params.out,
                         .kv = reinterpret_cast<const __half*>(kv.data),
                         .capacity = kv.capacity,
                         .head_dim = params.shape.head_dim,
                         .num_heads = params.num_heads,
                         .num_kv_heads = heads.count,
                         .first_position = params.first_position,
                         .num_rows = params.num_rows};
  if (wgmma_attends(device, rows.head_dim)) return attend_by_wgmma(device, rows);
  attend_by_mma(device, rows);
}

}  // namespace quantspec::cuda
