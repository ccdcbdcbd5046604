// Decode attention of a target's batch, most of all of one whose sequences are short: the kernel of
// attention_kernel.cuh with CTAs that stay, and read split after split. In a short context most
// teams of a split have one part or none; a CTA of its own for each split would mostly wait: for
// its pages, its queries, its first copies, its last sums. Here a warp asks for the pieces of its
// next split while it reads those of one.
//
// A CTA has items in a row (BatchItems), of one block of columns; those of a sequence and kv head
// in a row it reads without a stop. It has kWarps warps: one for each team; or half as many, of
// which a multiprocessor has two CTAs, that wait by turns. Then a warp is a team of a split and
// after that, where the split has parts for it, another, half of the teams on; the first one's sums
// lie in local memory meanwhile. A team adds up what it does in attention_kernel, in the same
// order; the teams' sums are added as there, and merge_kernel merges the splits. Teams of a second
// turn without parts are left out: they would add zeros. So bits are those of a sequence alone.
#pragma once

#include "backend/cuda/attention_items.cuh"
#include "backend/cuda/attention_kernel.cuh"

namespace quantspec::cuda {

// Shared memory of a CTA: queries; TeamPartials' statistics, of every other split; the streams of
// its warps; and places for what teams have of a column tile: for all teams, or the warps' for
// every other tile.
template <class S, int kWarps>
struct TurnsRoom {
  static constexpr int kCtas = S::kMaxTeams / kWarps;  // of a multiprocessor
  static constexpr int kPlaces = S::kMaxTeams;
  static_assert((S::kColumnTiles > 1 ? 2 : 1) * kWarps <= kPlaces);
  static constexpr int kStreamsOffset = (S::kExponentsOffset + 2 * S::kStatBytes + 127) / 128 * 128;
  static constexpr int kPlacesOffset = kStreamsOffset + kWarps * S::kStreamBytes;
  static constexpr int kBytes = kPlacesOffset + kPlaces * S::kOutTiles * 32 * sizeof(float4);
  static constexpr int kBesideBytes = 1 << 10;  // that a multiprocessor keeps of each CTA
  // most_bytes: of one CTA alone.
  static constexpr bool fits(int most_bytes) {
    return kCtas * (kBytes + kBesideBytes) <= most_bytes + kBesideBytes;
  }
};

// A warp's sums while it is another team.
template <class S>
class KeptSums {
 public:
  __device__ __forceinline__ void keep(WarpSums<S>& sums) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
      float* to = tile(n);
      for_each(sums, n, [&](float& x) { *to++ = x; });
    }
  }
  // Of a column tile.
  __device__ __forceinline__ void give_back(int n, WarpSums<S>& sums) {
    const float* from = tile(n);
    for_each(sums, n, [&](float& x) { x = *from++; });
  }

 private:
  static constexpr int kEach = S::kOutTiles * 4 + 2 * (S::kValueGroups + 2);
  __device__ __forceinline__ float* tile(int n) {
    return afresh(of_ + n * kEach);  // memory: registers are the other team's
  }
  template <typename F>
  __device__ __forceinline__ static void for_each(WarpSums<S>& sums, int n, const F& f) {
#pragma unroll
    for (int i = 0; i < S::kOutTiles; ++i) {
#pragma unroll
      for (float& x : sums.out[n][i]) f(x);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) f(sums.zero[i][n][c]);
      f(sums.sum[n][c]);
      f(sums.exponent[n][c]);
    }
  }

  float of_[S::kColumnTiles * kEach];
};

// What the teams of a CTA have of a column tile: C fragments, each lane's side by side, relative to
// the columns' greatest exponents; and who adds them up: a warp every kWarps-th channel tile. Teams
// of the first turn without parts have zeros.
template <class S, int kWarps>
class TileSums {
 public:
  // `places`: TurnsRoom's
  __device__ TileSums(const TeamPartials<S>& partials, std::byte* places, int warp,
                      FragmentLane lane)
      : partials_(partials),
        places_(reinterpret_cast<float4*>(places) + lane.index),
        warp_(warp),
        lane_(lane) {}

  // What the warp has of column tile n, as `team`; `first`: the place of team 0.
  __device__ __forceinline__ void put(const WarpSums<S>& sums, int n, int team, int first) const {
    const float2 most = greatest_exponents(n);
    float weight[2], zero[S::kValueGroups][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      weight[c] = exp2_approximately(sums.exponent[n][c] - (c == 0 ? most.x : most.y));
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) zero[i][c] = sum_over_tokens(sums.zero[i][n][c]);
      const float sum = sum_over_tokens(sums.sum[n][c]) * weight[c];
      if (lane_.g == 0) partials_.sums[team * S::kColumns + 8 * n + 2 * lane_.t + c] = sum;
    }
    float4* const to = fragments(first + team);
#pragma unroll
    for (int tile = 0; tile < S::kOutTiles; ++tile) {
      const float(&x)[4] = sums.out[n][tile];
      const float(&offset)[2] = zero[16 * tile / kValueGroup];
      to[32 * tile] = {(x[0] + offset[0]) * weight[0], (x[1] + offset[1]) * weight[1],
                       (x[2] + offset[0]) * weight[0], (x[3] + offset[1]) * weight[1]};
    }
  }
  // When all have put theirs: their sums. `partial`, `partial_sums`: of the split.
  __device__ __forceinline__ void add_up(int n, int first, int live, float* partial,
                                         float2* partial_sums) const {
    const int column = 8 * n + 2 * lane_.t;
    const float4* const from = fragments(first) + 32 * warp_;
    float* const to = partial + column * S::kHeadDim + 16 * warp_ + lane_.g;
#pragma unroll
    for (int tile = 0; tile < S::kOutTiles; tile += kWarps) {
      if (S::kOutTiles % kWarps != 0 && tile + warp_ >= S::kOutTiles) break;
      float4 out = from[32 * tile];
      for_others([&](int team) { out = add(out, from[32 * (S::kOutTiles * team + tile)]); });
      if (column < live) {
        to[16 * tile] = nonzero(out.x);
        to[16 * tile + 8] = nonzero(out.z);
      }
      if (column + 1 < live) {
        to[S::kHeadDim + 16 * tile] = nonzero(out.y);
        to[S::kHeadDim + 16 * tile + 8] = nonzero(out.w);
      }
    }
    const int mine = 8 * n + lane_.index;
    if (warp_ != n || lane_.index >= 8 || mine >= live) return;
    float sum = partials_.sums[mine];
    for_others([&](int team) { sum += partials_.sums[team * S::kColumns + mine]; });
    partial_sums[mine] = {nonzero(partials_.greatest_exponent(mine)), nonzero(sum)};
  }

 private:
  static_assert(S::kColumnTiles <= kWarps);

  // Calls f(team) for all teams but the first, in their order.
  template <typename F>
  __device__ __forceinline__ void for_others(const F& f) const {
#pragma unroll
    for (int team = 1; team < kWarps; ++team) f(team);
#pragma unroll 1
    for (int team = kWarps; team < partials_.teams; ++team) f(team);
  }
  __device__ __forceinline__ float4* fragments(int place) const {
    return places_ + place * (S::kOutTiles * 32);
  }
  // Of this lane's columns.
  __device__ __forceinline__ float2 greatest_exponents(int n) const {
    const float* const from = partials_.exponents + 8 * n + 2 * lane_.t;
    const auto of = [&](int team) {
      return *reinterpret_cast<const float2*>(from + team * S::kColumns);
    };
    float2 most = of(0);
    for_others([&](int team) {
      const float2 x = of(team);
      most = {fmaxf(most.x, x.x), fmaxf(most.y, x.y)};
    });
    return most;
  }

  const TeamPartials<S>& partials_;  // exponents and sums
  float4* places_;                   // [place, channel tile, lane], from this lane's on
  int warp_;
  FragmentLane lane_;
};

// Splits in a row of a sequence and kv head, from that of `work` up to `end`.
template <class S, int kWarps>
__device__ __forceinline__ void read_splits(const AttentionArgs& args, Work& work, int end,
                                            int live, std::byte* shared, FragmentLane lane) {
  using Room = TurnsRoom<S, kWarps>;
  const int warp = warp_index();
  std::byte* const slots = shared + Room::kStreamsOffset + warp * S::kStreamBytes;
  const auto units = reinterpret_cast<const std::byte**>(slots + S::kSlots * S::kSlotBytes);
  const Queries<S> queries(shared);
  const Team<S> first_team(nullptr, warp);
  PieceStream<S, TurnParts<S, kWarps>> stream(args, {args, work, end, {units}, warp, lane}, slots,
                                              first_team, lane);
  stream.start();
  load_queries<S, S::kColumns / kWarps>(args, work, queries, warp, kWarps, lane);
  __syncthreads();
#pragma unroll 1
  for (;; work.place = ++work.split) {
    int teams = kWarps;  // of the first turn, and those of the second that have parts
    while (teams < S::kMaxTeams && work.first_part<S>(teams) < work.num_parts) ++teams;
    const TeamPartials<S> partials(shared + S::kExponentsOffset + work.split % 2 * S::kStatBytes,
                                   /*merged=*/nullptr, teams);
    int index = warp;  // the team that the warp is
    WarpSums<S> sums;
    KeptSums<S> kept;
#pragma unroll 1
    for (;;) {
      const Team<S> team(nullptr, index);
      read_split<S>(args, work, queries, team, lane, stream, sums);
      store_exponents<S>(sums, team, lane, partials);
      if (kWarps == S::kMaxTeams || index + kWarps >= teams) break;
      kept.keep(sums);
      sums = WarpSums<S>();
      index += kWarps;
    }
    __syncthreads();
    const TileSums<S, kWarps> tiles(partials, shared + Room::kPlacesOffset, warp, lane);
    const std::ptrdiff_t columns = work.partial<S>(args);
    float* const partial = args.partials + columns * S::kHeadDim;
    float2* const partial_sums = args.partial_sums + columns;
    const bool all = teams > kWarps;  // have places for one tile, or those of a turn for two
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
      if (all && n > 0) __syncthreads();
      const int first = all ? 0 : n % 2 * kWarps;
#pragma unroll 1
      for (int team = index;; team = warp) {
        tiles.put(sums, n, team, first);
        if (kWarps == S::kMaxTeams || team == warp) break;
        kept.give_back(n, sums);
      }
      __syncthreads();
      tiles.add_up(n, first, live, partial, partial_sums);
    }
    if (work.split + 1 == end) return;
  }
}

// Grid: [column blocks, CTAs], as many as fill the GPU.
template <class S, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, TurnsRoom<S, kWarps>::kCtas)
    attention_turns_kernel(const __grid_constant__ AttentionArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_assert(S::kTeam == 1);
  extern __shared__ __align__(128) std::byte shared[];
  const FragmentLane lane;
  const BatchItems items = BatchItems::of<S, kWarps>(args, lane);
  const int end = items.first_of(blockIdx.y + 1, gridDim.y);
  int item = items.first_of(blockIdx.y, gridDim.y);
  // The end of this grid says that the kernels before it have ended, also where no CTA has work.
  if (item >= end) wait_for_previous_kernels();
#pragma unroll 1
  while (item < end) {
    const BatchItems::Place at = items.place(item, args.splits);
    const int splits = min(args.splits - at.split, end - item);
    item += splits;
    Work work = Work::of<S>(args, at.sequence, S::kMaxTeams);
    work.take<S>(args, at.head * gridDim.x + blockIdx.x, gridDim.x, at.split);
    const int live = work.live_columns<S>(args);
    if (live <= 0) continue;
    read_splits<S, kWarps>(args, work, at.split + splits, live, shared, lane);
    __syncthreads();  // queries and sums are others'
  }
#else
  __trap();  // takes_turns: on 8.x few shapes would have room for two, and none was measured
#endif
}

}  // namespace quantspec::cuda
