// How ranks on GPUs share a context (params/context.h). Decode attention gives its splits turns at
// pairs of bands (attention_shape.cuh), so that is what ranks take turns at, too, and when a
// target's splits on one GPU have all had theirs, the ranks begin anew. So a rank has all that some
// splits read, of each unit as many as another rank or one more, and those are one GPU's. Constants
// and pure functions, for host and device.
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

// Of a KV head, by a target's decode attention on one GPU, which has so many KV heads; the number
// of turns before ranks begin anew.
constexpr int target_splits(int num_sms, int heads) { return std::max(1, num_sms / heads); }

// The turn that a page is of, as of a target's `splits` that reads it.
constexpr int turn_of_page(const KvShape& shape, int splits, int page) {
  return page / turn_pages(shape) % splits;
}
// Whether a rank of the context has this unit of a page.
constexpr bool has_unit_of_page(const KvShape& shape, int splits, int page, int layer,
                                int kv_head) {
  return rank_of_turn(shape, turn_of_page(shape, splits, page), layer, kv_head) ==
         shape.context_rank;
}

// The splits of a launch, of which all ranks have theirs of each unit. A draft has several for each
// of a target's, of the same rank.
struct RankSplits {
  int targets;  // a target's
  int each;     // of the launch for each of those: split i is for i % targets
  int ranks;

  constexpr int all() const { return targets * each; }
  // Places for splits that each rank has: in some there is none, where others have one more.
  constexpr int places() const { return (targets + ranks - 1) / ranks * each; }
  // The split in a place, of the rank that has the unit's first-th one first; all(): none.
  constexpr int in_place(int place, int first) const {
    const int target = first + place / each * ranks;
    return target < targets ? place % each * targets + target : all();
  }
};
// The first of a target's splits that a rank has of a unit.
constexpr int first_split(int rank, int unit, int ranks) {
  return (rank + ranks - unit % ranks) % ranks;
}

}  // namespace quantspec::cuda
