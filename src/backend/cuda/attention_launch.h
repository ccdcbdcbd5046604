// The launch of decode attention, a file for each head_dim (attention_<head_dim>.cu).
#pragma once

#include <algorithm>

#include "backend/cuda/attention_shape.cuh"
#include "backend/cuda/ops.h"
#include "backend/cuda/ranks_kernel.h"
#include "quant/quant.h"

namespace quantspec::cuda {

// Launches a kernel that can begin while the one ahead still runs (ptx.cuh).
template <class... Args>
void launch_kernel(Device& device, OpOrder order, dim3 grid, int threads, int shared_bytes,
                   void (*kernel)(Args...), const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = device.stream();
  cudaLaunchAttribute attribute = launch_attribute(device, order);
  config.attrs = &attribute;
  config.numAttrs = device.capability() >= 90 ? 1 : 0;
  QUANTSPEC_CUDA(cudaLaunchKernelEx(&config, kernel, args...));
}

struct AttentionLaunch {
  AttentionArgs args;  // up to `scale`, `page_capacity` and `sequences`
  KvRead read;
  bool all_full;    // all tokens are in full precision
  int columns;      // the most of a sequence: rows times group
  int tokens;       // before the rows of a sequence that has some, on average
  bool unequal;     // BatchLengths::unequal()
  int sharing = 1;  // sequences of the launch that have rows
  OpOrder order;
  // Ranks that share the context have the query heads of so many equal parts of its KV heads; args
  // are of all of them, but `out` is of those of this rank.
  int heads_shares = 1;
  int contexts = 1;  // groups of ranks that share contexts, with as many KV heads each
  bool takes_turns;  // CTAs stay for several splits (attention_turns.cuh)
};

// The merge of splits, where a launch of attention does without (attention_merge.cu). `columns`:
// the most of a sequence; `block_columns`: of a CTA of that launch.
void launch_merge(Device& device, const AttentionArgs& args, int columns, int block_columns);

// Of ranks that share a context: what came out of the splits of all, merged for this rank's heads
// as those of a launch that merges apart.
void merge_of_ranks(Device& device, const AttentionLaunch& launch, const RankPartials& partials);

// The masses of pages, from what a launch of attention left (attention_mass.cu).
void launch_page_mass(Device& device, const AttentionArgs& args);

// Fills in the rest of args.
template <int kHeadDim>
void launch_attention(Device& device, AttentionLaunch& launch);

// What that takes of scratch memory, `unequal` or not. Of args: `group`, `shape`, `page_capacity`
// and the number of sequences are enough.
template <int kHeadDim>
AttentionScratch scratch_of(const Device& device, AttentionLaunch& launch);

extern template void launch_attention<64>(Device&, AttentionLaunch&);
extern template AttentionScratch scratch_of<64>(const Device&, AttentionLaunch&);
extern template void launch_attention<80>(Device&, AttentionLaunch&);
extern template AttentionScratch scratch_of<80>(const Device&, AttentionLaunch&);
extern template void launch_attention<96>(Device&, AttentionLaunch&);
extern template AttentionScratch scratch_of<96>(const Device&, AttentionLaunch&);
extern template void launch_attention<128>(Device&, AttentionLaunch&);
extern template AttentionScratch scratch_of<128>(const Device&, AttentionLaunch&);
extern template void launch_attention<256>(Device&, AttentionLaunch&);
extern template AttentionScratch scratch_of<256>(const Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
