// Attention of a prompt over the pages and the full-precision K and V of one layer: the online
// softmax of FlashAttention (arXiv:2205.14135) on tiles of keys at fixed absolute positions, so
// that a row's bits depend on its position alone: not on the number of threads or on the rows
// beside it. Where the kernels have bf16, queries, keys, probabilities and values are rounded to
// it; sums and all else are in fp32. Pages become fp32 a tile at a time, without rounding to fp16
// in between.
#pragma once

#include "backend/cpu/context.h"
#include "backend/host/host.h"

namespace quantspec::cpu {

// NOTE: within a tile on the diagonal a later token's infinite or NaN value reaches earlier rows
// too (its probability is 0, and 0 * inf is NaN). kv_heads: of params' query heads; pages: theirs.
void prefill_attention(const Context& context, const PrefillAttentionParams& params,
                       const LayerPages& pages, const KvHeads& kv_heads);

}  // namespace quantspec::cpu
