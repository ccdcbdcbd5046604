// The CTAs of a batch's drafts. Each reads a split to its end, and what a draft adds up in which
// order is free. So there are as many as the GPU holds at a time, or a few times that: those of a
// KV head are slots, which sequences share by their lengths, at least one for each.
#pragma once

#include "backend/cuda/attention_shape.cuh"

namespace quantspec::cuda {

// What a slot reads, by all lanes of a warp, of which each has a sequence.
struct DraftSlot {
  int sequence;  // of the launch, or negative: nothing
  int split, splits;

  template <class S>
  __device__ static DraftSlot of(const AttentionArgs& args, int slot, int teams,
                                 FragmentLane lane) {
    static_assert(kLaunchSequences <= 32, "a lane for each");
    const int count = args.sequences.count;
    const Work work = Work::of<S>(args, min(lane.index, count - 1), teams);
    const bool some = lane.index < count && work.state.num_rows > 0;
    const int parts = some ? work.num_parts : 0;
    int all = parts;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) all += __shfl_xor_sync(~0u, all, lanes);
    const int sharing = __popc(__ballot_sync(~0u, some));
    const int more = max(args.draft_slots - sharing, 0);  // than one for each
    const int mine = some ? min(1 + more * parts / all, work.splits) : 0;
    int end = mine;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int before = __shfl_up_sync(~0u, end, lanes);
      if (lane.index >= lanes) end += before;
    }
    const int sequence = __popc(__ballot_sync(~0u, end <= slot));
    if (sequence >= 32) return {-1, 0, 0};
    const int splits = __shfl_sync(~0u, mine, sequence);
    return {sequence, slot - __shfl_sync(~0u, end - mine, sequence), splits};
  }
};

}  // namespace quantspec::cuda
