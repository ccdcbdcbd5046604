// The items of a batch: splits of all its sequences and kv heads, numbered by sequence, then head,
// then split. CTAs that stay (attention_turns.cuh) have items in a row, so many that all have about
// as much to do.
#pragma once

#include "backend/cuda/attention_shape.cuh"

namespace quantspec::cuda {

// By all lanes of a warp, of which each has a sequence.
class BatchItems {
 public:
  struct Place {
    int sequence, head, split;
  };

  template <class S, int kWarps>
  __device__ static BatchItems of(const AttentionArgs& args, FragmentLane lane) {
    static_assert(kLaunchSequences <= 32, "a lane for each");
    const Work work = Work::of<S>(args, min(lane.index, args.sequences.count - 1), S::kMaxTeams);
    const bool some = lane.index < args.sequences.count && work.state.num_rows > 0;
    BatchItems items;
    items.count_ = some ? args.shape.num_kv_heads * args.splits : 0;
    items.each_ = some ? cost_of_head<S, kWarps>(work.num_parts, args.splits) : 1;
    items.end_ = items.count_;
    items.cost_end_ = items.count_ * items.each_;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int before = __shfl_up_sync(~0u, items.end_, lanes);
      const long long costs = __shfl_up_sync(~0u, items.cost_end_, lanes);
      if (lane.index >= lanes) items.end_ += before, items.cost_end_ += costs;
    }
    return items;
  }

  // Of a CTA: the first whose begin is not before the CTA's share of all costs.
  __device__ int first_of(int cta, int ctas) const {
    const long long all = __shfl_sync(~0u, cost_end_, 31);
    const long long begin = all * cta / ctas;
    const int sequence = __popc(__ballot_sync(~0u, cost_end_ <= begin));
    if (sequence >= 32) return __shfl_sync(~0u, end_, 31);
    const long long cost = __shfl_sync(~0u, cost_end_ - count_ * each_, sequence);
    const long long own = __shfl_sync(~0u, each_, sequence);
    const int first = __shfl_sync(~0u, end_ - count_, sequence);
    return first + static_cast<int>((begin - cost + own - 1) / own);
  }

  // REQUIRES: there is such an item
  __device__ Place place(int item, int splits) const {
    const int sequence = __popc(__ballot_sync(~0u, end_ <= item));
    const int before = __shfl_sync(~0u, end_, max(sequence - 1, 0));
    const int at = item - (sequence > 0 ? before : 0), head = at / splits;
    return {sequence, head, at - head * splits};
  }

 private:
  // What all splits of a kv head cost. A CTA's warps read a part each at a time: the first two of
  // every split if there are so many parts, then the next two, and so on. NOTE: 2 and 3 are an
  // estimate (docs/decisions/0023-attention-of-batches.md).
  template <class S, int kWarps>
  __device__ static int cost_of_head(int parts, int splits) {
    const int turn = kWarps * splits, left = parts % turn;
    const int reads = parts / turn * splits + min(splits, (left + S::kBeside - 1) / S::kBeside);
    return 2 * splits + 3 * reads;
  }

  int count_, end_;            // of this lane's sequence; and of those before it, too
  long long each_, cost_end_;  // what an item costs, times splits; and as end_
};

}  // namespace quantspec::cuda
