// Decode attention of a target's batch whose sequences are short and have several columns each: the
// kernel of attention_kernel.cuh by CTAs of half the warps, of which a multiprocessor has two. In a
// short context most teams of a split have one part or none, and a CTA that has a multiprocessor
// for itself mostly waits: for its pages, its first copies, its last sums. Two wait by turns.
//
// A warp is a team and then, where the split has parts for it, another, half of the teams on; the
// first one's sums lie in local memory meanwhile. A team adds up what it does in attention_kernel,
// in the same order, and merge_kernel merges the splits. Teams without parts are left out: they
// would add zeros. So bits are those of a sequence alone.
#pragma once

#include "backend/cuda/attention_kernel.cuh"

namespace quantspec::cuda {

// Shared memory of a CTA: as attention_kernel's, with streams of half the teams.
template <class S>
struct TurnsRoom {
  static constexpr int kBesideBytes = 1 << 10;  // that a multiprocessor keeps of each CTA
  static constexpr int bytes(int teams) {
    const int streams = teams / 2 * S::kStreamBytes, merged = S::merge_bytes(teams);
    return S::kSlotsOffset + (streams > merged ? streams : merged);
  }
  // most_bytes: of one CTA alone.
  static constexpr bool holds_two(int teams, int most_bytes) {
    return 2 * (bytes(teams) + kBesideBytes) <= most_bytes + kBesideBytes;
  }
};

// A warp's sums while it is another team.
template <class S>
class KeptSums {
 public:
  __device__ __forceinline__ void keep(WarpSums<S>& sums) {
    float* to = afresh(of_);  // memory: registers are the other team's
    for_each(sums, [&](float& x) { *to++ = x; });
  }
  __device__ __forceinline__ void give_back(WarpSums<S>& sums) {
    const float* from = afresh(of_);
    for_each(sums, [&](float& x) { x = *from++; });
  }

 private:
  template <typename F>
  __device__ __forceinline__ static void for_each(WarpSums<S>& sums, const F& f) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < S::kOutTiles; ++i) {
#pragma unroll
        for (float& x : sums.out[n][i]) f(x);
      }
    }
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int i = 0; i < S::kValueGroups; ++i) f(sums.zero[i][n][c]);
        f(sums.sum[n][c]);
        f(sums.exponent[n][c]);
      }
    }
  }

  float of_[S::kColumnTiles * S::kOutTiles * 4 + S::kScoreTiles * 2 * (S::kValueGroups + 2)];
};

// Grid: [column blocks * kv heads, splits, sequences]. Threads: of half the teams.
template <class S>
__global__ void __launch_bounds__(32 * S::kMaxTeams / 2, 2)
    attention_turns_kernel(const __grid_constant__ AttentionArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_assert(S::kTeam == 1);
  extern __shared__ __align__(128) std::byte shared[];
  const FragmentLane lane;
  const int warp = warp_index(), warps = blockDim.x / 32;
  Work work = Work::of<S>(args, blockIdx.z, 2 * warps);
  work.take<S>(args, blockIdx.x, args.column_blocks, blockIdx.y);
  const int live = work.live_columns<S>(args);
  if (live <= 0) {
    // The end of this grid says that the kernels before it have ended, also where no CTA has work.
    if ((blockIdx.x | blockIdx.y | blockIdx.z) == 0) wait_for_previous_kernels();
    return;
  }
  int teams = 1;  // that have parts, but the first in any case
  while (teams < work.teams && work.first_part<S>(teams) < work.num_parts) ++teams;
  const Queries<S> queries(shared);
  std::byte* const streams = shared + S::kSlotsOffset;
  std::byte* const slots = streams + warp * S::kStreamBytes;
  const auto units = reinterpret_cast<const std::byte**>(slots + S::kSlots * S::kSlotBytes);
  const TeamPartials<S> partials(shared + S::kExponentsOffset, streams, teams);
  int index = warp;  // the team that the warp is
  WarpSums<S> sums;
  KeptSums<S> kept;
#pragma unroll 1
  for (;;) {
    const Team<S> team(nullptr, index);
    PieceStream<S> stream(args, work, slots, {units}, team, lane);
    stream.start();
    if (index == warp) {
      load_queries<S, S::kScoreTiles>(args, work, queries, warp, warps, lane);
      __syncthreads();
    }
    read_split<S>(args, work, queries, team, lane, stream, sums);
    if (index < teams) store_exponents<S>(sums, team, lane, partials);
    if (index + warps >= teams) break;
    kept.keep(sums);
    sums = WarpSums<S>();
    index += warps;
  }
  __syncthreads();
#pragma unroll 1
  for (;; index -= warps) {
    if (index < teams) store_warp<S>(sums, Team<S>(nullptr, index), live, lane, partials);
    if (index < warps) break;
    kept.give_back(sums);
  }
  __syncthreads();
  const std::ptrdiff_t columns = work.partial<S>(args);
  store_partial<S>(partials, live, args.partials + columns * S::kHeadDim,
                   args.partial_sums + columns, 32 * warps);
#else
  __trap();  // before, no multiprocessor has the memory for two
#endif
}

}  // namespace quantspec::cuda
