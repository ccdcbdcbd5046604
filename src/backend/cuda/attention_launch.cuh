// Which kernel, with which splits, teams and shared memory: what launch_attention does.
#pragma once

#include <algorithm>
#include <bit>

#include "backend/cuda/attention_launch.h"
#include "backend/cuda/attention_turns.cuh"
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
  static AttentionSplit of(const Device& device, const AttentionLaunch& launch) {
    AttentionSplit split;
    const KvShape& shape = launch.args.shape;
    const int heads = shape.num_kv_heads * launch.contexts;
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

// The slots of a batch's drafts (attention_slots.cuh), where `filling` of them fill the GPU: twice
// as many where lengths are unequal, or where that leaves clearly fewer of them empty: of 33 slots
// 20 sequences take 20, of 66 they take 60.
inline int slots_of_drafts(int filling, const AttentionLaunch& launch) {
  const auto each = [&](int slots) { return std::max(1, slots / std::max(1, launch.sharing)); };
  const bool twice = launch.unequal || 4 * each(2 * filling) >= 9 * each(filling);
  return twice ? 2 * filling : filling;
}

// Whether a batch has CTAs that stay (attention_turns.cuh): where splits are short, and several for
// each multiprocessor. Of long ones CTAs with all teams have as much under way, and begin one by
// one. With one column tile of codes those that stay are faster at any length; but of unequal long
// sequences the CTA that has the longest might end last (not timed). What is short begins at a
// power of two, as rounds are known by (BatchLengths::key()).
// NOTE: measured on an H200 alone (docs/decisions/0023-attention-of-batches.md).
template <class S>
bool takes_turns(const Device& device, const AttentionLaunch& launch) {
  if constexpr (!S::kTakesTurns) {
    return false;
  } else {
    const AttentionArgs& args = launch.args;
    const AttentionSplit<S> split = AttentionSplit<S>::of(device, launch);
    const bool narrow = launch.columns <= 8 && !launch.all_full && !launch.unequal;
    const int items = args.sequences.count * args.shape.num_kv_heads * split.splits;
    return device.capability() >= 90 && split.teams == S::kMaxTeams &&
           TurnsRoom<S, S::kMaxTeams / 2>::fits(static_cast<int>(device.max_shared_bytes())) &&
           args.shape.context_ranks == 1 && args.sequences.count > 1 &&
           items > 2 * device.num_sms() &&
           (narrow || launch.tokens < device.tuning().short_split *
                                          static_cast<int>(std::bit_floor(unsigned(split.splits))));
  }
}

// Whether splits have parts for all teams, on average: then CTAs that stay have a warp for each. It
// begins at a power of two, too.
template <class S>
bool fills_teams(const AttentionLaunch& launch) {
  const int part_tokens = launch.all_full ? S::kSlabTokens : S::kBandTokens;
  return launch.tokens >= S::kMaxTeams * part_tokens *
                              static_cast<int>(std::bit_floor(unsigned(launch.args.splits)));
}

// What of args follows from shapes.
template <class S>
void shape_launch(const Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const AttentionSplit<S> split = AttentionSplit<S>::of(device, launch);
  args.splits = split.splits;
  args.context_shift = std::countr_zero(static_cast<unsigned>(args.shape.context_ranks));
  if (S::kPlanes == 1 && args.context_shift == 0 && args.sequences.count > 1) {
    const int heads = args.shape.num_kv_heads, count = args.sequences.count;
    const int filling = device.tuning().draft_rounds * S::kCtas * device.num_sms() / heads;
    args.draft_slots = std::clamp(slots_of_drafts(filling, launch), count, count * args.splits);
    // One that is longer than others has no more than four times what each would of twice as many.
    args.splits = std::clamp(4 * 2 * filling / count, 1, args.splits);
  }
  args.places = args.context_shift > 0 ? rank_splits<S>(args).places() : args.splits;
  args.column_blocks = (launch.columns + S::kColumns - 1) / S::kColumns;
  args.band_shift = std::countr_zero(static_cast<unsigned>(args.shape.page_size)) -
                    std::countr_zero(static_cast<unsigned>(S::kBandTokens));
  args.page_columns = args.page_capacity > 0 ? args.column_blocks * S::kColumns : 0;
  launch.takes_turns = takes_turns<S>(device, launch);
}

// Scratch memory of a launch, in elements, one part after the other; of ranks that share a context
// for what all tell each other, too.
template <class S>
struct LaunchRooms {
  bool shared, merges_apart;
  std::size_t heads, columns, all_columns, totals, page_sums;

  // REQUIRES: shape_launch()
  explicit LaunchRooms(const AttentionLaunch& launch)
      : shared(launch.args.context_shift > 0),
        merges_apart(S::kMergesApart || shared || launch.takes_turns),
        heads(static_cast<std::size_t>(launch.args.sequences.count) *
              launch.args.shape.num_kv_heads),
        columns(heads * launch.args.column_blocks * launch.args.places * S::kColumns),
        all_columns(shared ? heads / launch.heads_shares * launch.args.splits * launch.columns : 0),
        totals(heads * launch.args.page_columns),
        page_sums((totals * launch.args.page_capacity) << launch.args.band_shift) {}

  std::size_t ticket_bytes() const { return (heads * sizeof(int) + 255) / 256 * 256; }
  AttentionScratch bytes() const {
    const auto bytes_of = [](std::size_t count) {
      return count * (sizeof(float2) + S::kHeadDim * sizeof(float));
    };
    const std::size_t masses = (totals + page_sums) * sizeof(float2), partials = bytes_of(columns);
    if (merges_apart) return {.results = masses + partials + bytes_of(all_columns)};
    return {.results = masses, .counters = ticket_bytes() + partials};
  }
};

template <class S>
RankPartials allocate_scratch(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const LaunchRooms<S> rooms(launch);
  const AttentionScratch bytes = rooms.bytes();
  std::byte* const memory = device.scratch(Scratch::kAttention, bytes.results);
  args.totals = reinterpret_cast<float2*>(memory);
  args.page_sums = args.totals + rooms.totals;
  if (rooms.merges_apart) {
    args.tickets = nullptr;
    args.partial_sums = args.page_sums + rooms.page_sums;
  } else {
    std::byte* const zeros = device.scratch(Scratch::kCounters, bytes.counters);
    args.tickets = reinterpret_cast<int*>(zeros);
    args.partial_sums = reinterpret_cast<float2*>(zeros + rooms.ticket_bytes());
  }
  args.partials = reinterpret_cast<float*>(args.partial_sums + rooms.columns);
  if (!rooms.shared) return {};
  float* const all_rows = args.partials + rooms.columns * S::kHeadDim;
  return {.sums = args.partial_sums,
          .rows = args.partials,
          .all_sums = reinterpret_cast<float2*>(all_rows + rooms.all_columns * S::kHeadDim),
          .all_rows = all_rows,
          .sequences = args.sequences.count,
          .heads = args.shape.num_kv_heads,
          .each = args.shape.num_kv_heads / launch.heads_shares,
          .alike = args.shape.context_ranks / launch.heads_shares,
          .first_unit = unit_number(args.shape, args.layer, 0),
          .column_blocks = args.column_blocks,
          .block_columns = S::kColumns,
          .columns = launch.columns,
          .splits = rank_splits<S>(args),
          .places = args.places,
          .head_dim = S::kHeadDim};
}

template <class S>
void launch_kernel_of(Device& device, const AttentionLaunch& launch,
                      const AttentionSplit<S>& split) {
  const AttentionArgs& args = launch.args;
  const int heads = args.column_blocks * args.shape.num_kv_heads;
  const dim3 grid = args.draft_slots > 0 ? dim3(heads, args.draft_slots)
                                         : dim3(heads, args.places, args.sequences.count);
  const auto run = [&](auto kernel, dim3 ctas, int warps, int shared_bytes,
                       Kernels::Prefers prefers = Kernels::Prefers::kNothing) {
    device.kernels().allow_shared(kernel, prefers);
    launch_kernel(device, launch.order, ctas, 32 * warps, shared_bytes, kernel, args);
  };
  if constexpr (S::kTakesTurns) {
    const auto stay = [&]<int kWarps>() {
      using Room = TurnsRoom<S, kWarps>;
      const int ctas = Room::kCtas * device.num_sms();
      run(attention_turns_kernel<S, kWarps>,
          dim3(args.column_blocks, std::max(1, ctas / args.column_blocks)), kWarps, Room::kBytes,
          Kernels::Prefers::kShared);
    };
    if (launch.takes_turns) {
      if constexpr (S::kColumnTiles == 1) {
        static_assert(TurnsRoom<S, S::kMaxTeams>::kBytes <=
                      2 * TurnsRoom<S, S::kMaxTeams / 2>::kBytes);
        if (fills_teams<S>(launch)) return stay.template operator()<S::kMaxTeams>();
      }
      return stay.template operator()<S::kMaxTeams / 2>();
    }
  }
  run(attention_kernel<S>, grid, S::kTeam * split.teams, split.template shared_bytes<S>());
}

template <class S>
void launch_shape(Device& device, AttentionLaunch& launch) {
  AttentionArgs& args = launch.args;
  const AttentionSplit<S> split = AttentionSplit<S>::of(device, launch);
  shape_launch<S>(device, launch);
  const RankPartials partials = allocate_scratch<S>(device, launch);
  launch_kernel_of<S>(device, launch, split);
  if (args.context_shift > 0) return merge_of_ranks(device, launch, partials);
  if (S::kMergesApart || launch.takes_turns) {
    launch_merge(device, args, launch.columns, S::kColumns);
  }
  if (args.page_capacity > 0) launch_page_mass(device, args);
}

template <class S>
bool fits(const Device& device, const AttentionLaunch& launch) {
  const auto split = AttentionSplit<S>::of(device, launch);
  return split.template shared_bytes<S>() <= static_cast<int>(device.max_shared_bytes());
}

// Calls f.operator()<S>() for the kernel of a launch: as few blocks of columns as there may be,
// none wider than needed; the widest by pairs of warps, where shared memory allows it. CTAs that
// stay have three column tiles at most.
template <int kHeadDim, int kPlanes, typename F>
void with_planes(const Device& device, const AttentionLaunch& launch, const F& f) {
  constexpr int kWidest = AttentionSplit<AttentionShape<kHeadDim, 4, 1, kPlanes>>::kWidest;
  if (launch.args.shape.page_size < 64) {
    return f.template operator()<AttentionShape<kHeadDim, 2, kWidest, kPlanes>>();
  }
  constexpr int kTurnsWidest = std::min(kWidest, 3);
  const bool turns =
      takes_turns<AttentionShape<kHeadDim, 4, kTurnsWidest, kPlanes>>(device, launch);
  const int most = turns ? kTurnsWidest : kWidest;
  const int tiles = (launch.columns + 7) / 8, blocks = (tiles + most - 1) / most;
  const int width = (tiles + blocks - 1) / blocks;
  if (width == 1) return f.template operator()<AttentionShape<kHeadDim, 4, 1, kPlanes>>();
  if (width == 2) return f.template operator()<AttentionShape<kHeadDim, 4, 2, kPlanes>>();
  if constexpr (kWidest == 4) {
    if (width == 3) return f.template operator()<AttentionShape<kHeadDim, 4, 3, kPlanes>>();
    if constexpr (kPlanes == 2 && kHeadDim % 32 == 0) {
      using Pairs = AttentionShape<kHeadDim, 4, 4, kPlanes, 2>;
      if (fits<Pairs>(device, launch)) return f.template operator()<Pairs>();
    }
    f.template operator()<AttentionShape<kHeadDim, 4, 4, kPlanes>>();
  }
}

template <int kHeadDim, typename F>
void with_shape(const Device& device, const AttentionLaunch& launch, const F& f) {
  if (launch.read == KvRead::kUpper) {
    with_planes<kHeadDim, 1>(device, launch, f);
  } else {
    with_planes<kHeadDim, 2>(device, launch, f);
  }
}

template <int kHeadDim>
void launch_attention(Device& device, AttentionLaunch& launch) {
  with_shape<kHeadDim>(device, launch, [&]<class S>() { launch_shape<S>(device, launch); });
}

template <int kHeadDim>
AttentionScratch scratch_of(const Device& device, AttentionLaunch& launch) {
  AttentionScratch scratch;
  with_shape<kHeadDim>(device, launch, [&]<class S>() {
    shape_launch<S>(device, launch);
    scratch = LaunchRooms<S>(launch).bytes();
  });
  return scratch;
}

}  // namespace quantspec::cuda
