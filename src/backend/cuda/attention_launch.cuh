// Which kernel, with which splits, teams and shared memory: what launch_attention does.
#pragma once

#include <algorithm>
#include <bit>

#include "backend/cuda/attention_kernel.cuh"
#include "backend/cuda/attention_launch.h"

namespace quantspec::cuda {

// How the work of a sequence's kv head is divided. It decides bits, so it depends on the machine
// and on the shapes that every pass of a model has, all ranks' heads included, and not on the
// number of columns.
template <class S>
struct AttentionSplit {
  static constexpr int kWidest = S::kHeadDim <= 128 ? 4 : 2;  // column tiles, by registers
  using Widest = AttentionShape<S::kHeadDim, S::kTokenTiles, kWidest, S::kPlanes>;
  using Narrowest = AttentionShape<S::kHeadDim, S::kTokenTiles, 1, S::kPlanes>;
  int splits;
  int teams;  // of a CTA

  static AttentionSplit of(const Device& device, int num_kv_heads) {
    AttentionSplit split;
    const int heads = num_kv_heads * device.num_ranks();
    split.splits = std::max(1, Narrowest::kCtas * device.num_sms() / heads);
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

// Scratch memory of a launch, one part after the other.
template <class S>
void allocate_scratch(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const std::size_t heads =
      static_cast<std::size_t>(args.sequences.count) * args.shape.num_kv_heads;
  const std::size_t columns = heads * args.column_blocks * args.splits * S::kColumns;
  args.page_columns = args.page_capacity > 0 ? args.column_blocks * S::kColumns : 0;
  const std::size_t totals = heads * args.page_columns;
  const std::size_t page_sums = (totals * args.page_capacity) << args.band_shift;
  const std::size_t partials = columns * (sizeof(float2) + S::kHeadDim * sizeof(float));
  std::byte* memory = device.scratch(Scratch::kAttention, (totals + page_sums) * sizeof(float2) +
                                                              (S::kMergesApart ? partials : 0));
  args.totals = reinterpret_cast<float2*>(memory);
  args.page_sums = args.totals + totals;
  if constexpr (S::kMergesApart) {
    args.partial_sums = args.page_sums + page_sums;
  } else {
    const std::size_t tickets = (heads * sizeof(int) + 255) / 256 * 256;
    std::byte* zeros = device.scratch(Scratch::kCounters, tickets + partials);
    args.tickets = reinterpret_cast<int*>(zeros);
    args.partial_sums = reinterpret_cast<float2*>(zeros + tickets);
  }
  args.partials = reinterpret_cast<float*>(args.partial_sums + columns);
}

template <class S>
void launch_shape(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const AttentionSplit<S> split = AttentionSplit<S>::of(device, args.shape.num_kv_heads);
  args.splits = split.splits;
  args.column_blocks = (launch.columns + S::kColumns - 1) / S::kColumns;
  args.band_shift = std::countr_zero(static_cast<unsigned>(args.shape.page_size)) -
                    std::countr_zero(static_cast<unsigned>(S::kBandTokens));
  allocate_scratch<S>(device, launch);
  device.kernels().allow_shared(attention_kernel<S>);
  launch_kernel(
      device, launch.order,
      dim3(args.column_blocks * args.shape.num_kv_heads, args.splits, args.sequences.count),
      32 * S::kTeam * split.teams, split.template shared_bytes<S>(), attention_kernel<S>, args);
  if (S::kMergesApart) launch_merge(device, args, launch.columns, S::kColumns);
  if (args.page_capacity > 0) launch_page_mass(device, args);
}

template <class S>
bool fits(const Device& device, const AttentionLaunch& launch) {
  const auto split = AttentionSplit<S>::of(device, launch.args.shape.num_kv_heads);
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
