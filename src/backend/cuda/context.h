// How ranks on GPUs share a context (params/context.h). Decode attention gives its splits turns at
// pairs of bands (attention_shape.cuh), so that is what ranks take turns at, too: where the number
// of a target's splits on one GPU is a multiple of the ranks, a rank attends to whole splits, and
// those are one GPU's. Constants and pure functions, for host and device.
#pragma once

#include <algorithm>

#include "backend/cuda/layout.h"
#include "backend/params/context.h"

namespace quantspec::cuda {

// Pages have so many tokens at most: else ranks would have parts of a page.
inline constexpr int kMostTurnTokens = 128;

// Pages that a rank has in a row of a unit: of a pair of bands. REQUIRES: shape.page_size is at
// most kMostTurnTokens.
constexpr int turn_pages(const KvShape& shape) {
  const int pair = 2 * 16 * tile_slabs(shape.page_size);
  return std::max(1, pair / shape.page_size);
}

// Whether a rank of the context has this unit of a page.
constexpr bool has_unit_of_page(const KvShape& shape, int page, int layer, int kv_head) {
  return rank_of_turn(shape, page / turn_pages(shape), layer, kv_head) == shape.context_rank;
}

// A rank's splits of a unit: of all, each `ranks`-th one from this on.
constexpr int first_split(int rank, int unit, int ranks) {
  return (rank + ranks - unit % ranks) % ranks;
}

}  // namespace quantspec::cuda
