// Which kernel, with which splits, teams and shared memory: what launch_attention does.
#pragma once

#include <algorithm>
#include <bit>

#include "backend/cuda/attention_kernel.cuh"
#include "backend/cuda/attention_launch.h"
#include "backend/params/context.h"
#include "base/error.h"

namespace quantspec::cuda {

// How the work of a sequence's kv head is divided. It decides bits, so it depends on the machine
// and on the shapes that every pass of a model has, all ranks' heads included, and not on the
// number of columns.
template <class S>
struct AttentionSplit {
  static constexpr int kWidest = S::kHeadDim <= 128 ? 4 : 2;  // column tiles, by registers
  using Widest = AttentionShape<S::kHeadDim, S::kTokenTiles, kWidest, S::kPlanes>;
  int splits;
  int teams;  // of a CTA

  // Where ranks share a context a draft has as many for each of a target's: it may have fewer than
  // one GPU's, or more.
  static AttentionSplit of(const Device& device, const KvShape& shape) {
    AttentionSplit split;
    const int heads = shape.num_kv_heads * device.num_contexts();
    split.splits = shape.context_ranks > 1 ? S::kSplits * target_splits(device.num_sms(), heads)
                                           : target_splits(S::kSplits * device.num_sms(), heads);
    split.teams = S::kMaxTeams;
    while (split.teams > S::kBeside &&
           split.shared_bytes<Widest>() > static_cast<int>(device.max_shared_bytes())) {
      split.teams /= 2;
    }
    return split;
  }

  // Of a kernel of T: queries, then streams and what teams share, over which teams and then, unless
  // another kernel does it, splits are merged.
  template <class T>
  int shared_bytes() const {
    return T::kSlotsOffset +
           std::max({teams * (T::kStreamBytes + T::kTeamBytes), T::merge_bytes(teams),
                     T::kMergesApart ? 0 : (2 + splits) * T::kColumns * 4});
  }
};

// Scratch memory of a launch, one part after the other; of ranks that share a context for what all
// tell each other, too.
template <class S>
RankPartials allocate_scratch(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const bool shared = args.context_shift > 0, merges_apart = S::kMergesApart || shared;
  const std::size_t heads =
      static_cast<std::size_t>(args.sequences.count) * args.shape.num_kv_heads;
  const std::size_t columns = heads * args.column_blocks * args.places * S::kColumns;
  const std::size_t all_columns =
      shared ? heads / launch.heads_shares * args.splits * launch.columns : 0;
  args.page_columns = args.page_capacity > 0 ? args.column_blocks * S::kColumns : 0;
  const std::size_t totals = heads * args.page_columns;
  const std::size_t page_sums = (totals * args.page_capacity) << args.band_shift;
  const auto bytes_of = [](std::size_t count) {
    return count * (sizeof(float2) + S::kHeadDim * sizeof(float));
  };
  const std::size_t partials = bytes_of(columns);
  std::byte* memory = device.scratch(Scratch::kAttention,
                                     (totals + page_sums) * sizeof(float2) +
                                         (merges_apart ? partials + bytes_of(all_columns) : 0));
  args.totals = reinterpret_cast<float2*>(memory);
  args.page_sums = args.totals + totals;
  if (merges_apart) {
    args.tickets = nullptr;
    args.partial_sums = args.page_sums + page_sums;
  } else {
    const std::size_t tickets = (heads * sizeof(int) + 255) / 256 * 256;
    std::byte* zeros = device.scratch(Scratch::kCounters, tickets + partials);
    args.tickets = reinterpret_cast<int*>(zeros);
    args.partial_sums = reinterpret_cast<float2*>(zeros + tickets);
  }
  args.partials = reinterpret_cast<float*>(args.partial_sums + columns);
  if (!shared) return {};
  float* const all_rows = args.partials + columns * S::kHeadDim;
  return {.sums = args.partial_sums,
          .rows = args.partials,
          .all_sums = reinterpret_cast<float2*>(all_rows + all_columns * S::kHeadDim),
          .all_rows = all_rows,
          .sequences = args.sequences.count,
          .heads = args.shape.num_kv_heads,
          .each = args.shape.num_kv_heads / launch.heads_shares,
          .alike = args.shape.context_ranks / launch.heads_shares,
          .first_unit = unit_number(args.shape, args.layer, 0),
          .column_blocks = args.column_blocks,
          .block_columns = S::kColumns,
          .columns = launch.columns,
          .places = args.places,
          .splits = rank_splits<S>(args),
          .head_dim = S::kHeadDim};
}

template <class S>
void launch_shape(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const AttentionSplit<S> split = AttentionSplit<S>::of(device, args.shape);
  args.splits = split.splits;
  args.context_shift = std::countr_zero(static_cast<unsigned>(args.shape.context_ranks));
  args.places = args.context_shift > 0 ? rank_splits<S>(args).places() : args.splits;
  args.column_blocks = (launch.columns + S::kColumns - 1) / S::kColumns;
  args.band_shift = std::countr_zero(static_cast<unsigned>(args.shape.page_size)) -
                    std::countr_zero(static_cast<unsigned>(S::kBandTokens));
  const RankPartials partials = allocate_scratch<S>(device, launch);
  device.kernels().allow_shared(attention_kernel<S>);
  launch_kernel(
      device, launch.order,
      dim3(args.column_blocks * args.shape.num_kv_heads, args.places, args.sequences.count),
      32 * S::kTeam * split.teams, split.template shared_bytes<S>(), attention_kernel<S>, args);
  if (args.context_shift > 0) return merge_of_ranks(device, launch, partials);
  if (S::kMergesApart) launch_merge(device, args, launch.columns, S::kColumns);
  if (args.page_capacity > 0) launch_page_mass(device, args);
}

template <class S>
bool fits(const Device& device, const AttentionLaunch& launch) {
  const auto split = AttentionSplit<S>::of(device, launch.args.shape);
  return split.template shared_bytes<S>() <= static_cast<int>(device.max_shared_bytes());
}

// As few blocks of columns as there may be, none wider than needed; the widest by pairs of warps,
// where shared memory allows it.
template <int kHeadDim, int kPlanes>
void launch_planes(Device& device, AttentionLaunch& launch) {
  constexpr int kWidest = AttentionSplit<AttentionShape<kHeadDim, 4, 1, kPlanes>>::kWidest;
  if (launch.args.shape.page_size < 64) {
    return launch_shape<AttentionShape<kHeadDim, 2, kWidest, kPlanes>>(device, launch);
  }
  const int tiles = (launch.columns + 7) / 8, blocks = (tiles + kWidest - 1) / kWidest;
  const int width = (tiles + blocks - 1) / blocks;
  if (width == 1) return launch_shape<AttentionShape<kHeadDim, 4, 1, kPlanes>>(device, launch);
  if (width == 2) return launch_shape<AttentionShape<kHeadDim, 4, 2, kPlanes>>(device, launch);
  if constexpr (kWidest == 4) {
    if (width == 3) return launch_shape<AttentionShape<kHeadDim, 4, 3, kPlanes>>(device, launch);
    if constexpr (kPlanes == 2 && kHeadDim % 32 == 0) {
      using Pairs = AttentionShape<kHeadDim, 4, 4, kPlanes, 2>;
      if (fits<Pairs>(device, launch)) return launch_shape<Pairs>(device, launch);
    }
    launch_shape<AttentionShape<kHeadDim, 4, 4, kPlanes>>(device, launch);
  }
}

template <int kHeadDim>
void launch_attention(Device& device, AttentionLaunch& launch) {
  if (launch.read == KvRead::kUpper) {
    launch_planes<kHeadDim, 1>(device, launch);
  } else {
    launch_planes<kHeadDim, 2>(device, launch);
  }
}

}  // namespace quantspec::cuda
