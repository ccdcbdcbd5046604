// The kernel of decode attention (attention_shape.cuh has the words) and its launch.
#pragma once

#include "backend/cuda/attention_merge.cuh"
#include "backend/cuda/attention_pages.cuh"
#include "backend/cuda/attention_slabs.cuh"
#include "backend/cuda/attention_slots.cuh"
#include "backend/cuda/attention_stream.cuh"

namespace quantspec::cuda {

// The CTA's queries in shared memory, and what belongs to a column.
template <class S>
struct Queries {
  std::byte* operands;  // as load_query wants them; a column's greatest element is in [32, 64)
  float* factors;       // [columns]: from products of those to scores in powers of two
  int* visible;         // [columns]: tokens seen from first_full on
  int* gathered;        // [columns]: tokens that were gathered
  __device__ explicit Queries(std::byte* shared)
      : operands(shared),
        factors(reinterpret_cast<float*>(shared + S::kQueryBytes)),
        visible(reinterpret_cast<int*>(factors + S::kColumns)),
        gathered(visible + S::kColumns) {}
  // The operands from a column tile on.
  __device__ __forceinline__ const std::byte* tile(int column_tile) const {
    return operands + column_tile * (S::kChannelTiles * 32 * sizeof(Operand));
  }
};

// One column. NOTE: queries are brought to [32, 64) so that, times key scales, they neither
// overflow fp16 (scales of fp16 keys are below 2^10) nor sink below it.
template <class S, int kEach>
__device__ __forceinline__ void store_query(const AttentionArgs& args, const Work& work,
                                            const Queries<S>& queries, int column,
                                            const float (&q)[kEach], FragmentLane lane) {
  float most = 0.0f;
#pragma unroll
  for (const float x : q) most = fmaxf(most, fabsf(x));
  most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));  // none is negative
  const int exponent = min(max((__float_as_int(most) >> 23) - 127, -60), 60) - 5;
  const float shrink = __int_as_float((127 - exponent) << 23);  // 2^-exponent
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int channel = lane.index + 32 * i;
    if (channel >= S::kHeadDim) continue;
    const int k = channel % 16;
    const int tile = column / 8 * S::kChannelTiles + channel / 16;
    std::byte* word = queries.operands + (tile * 32 + column % 8 * 4 + k % 8 / 2) * sizeof(Operand);
    reinterpret_cast<__half*>(word)[k / 8 * 2 + k % 2] = __float2half_rn(q[i] * shrink);
  }
  if (lane.index == 0) {
    const int row = args.row_of(work.block * S::kColumns + column);
    queries.factors[column] = args.scale * __int_as_float((127 + exponent) << 23);
    queries.visible[column] = work.state.first_position + row + 1 - work.state.first_full;
    queries.gathered[column] = work.kv->num_gathered;
  }
}

// Phase 1, and the wait for the kernels ahead, when all else is ready. By `warps` warps, each of
// which has kAtOnce columns at a time.
template <class S, int kAtOnce>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const Work& work,
                                             const Queries<S>& queries, int warp, int warps,
                                             FragmentLane lane) {
  constexpr int kEach = (S::kHeadDim + 31) / 32;
  for (int first = warp; first < S::kColumns; first += kAtOnce * warps) {
    float q[kAtOnce][kEach];
    const float* from[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int index = work.block * S::kColumns + first + n * warps, row = args.row_of(index);
      from[n] = args.q + (static_cast<std::ptrdiff_t>(work.state.first_row + row) * args.num_heads +
                          work.kv_head * args.group + args.head_of(index)) *
                             S::kHeadDim;
      if (row >= work.state.num_rows) from[n] = nullptr;
    }
    wait_for_previous_kernels();
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int channel = lane.index + 32 * i;
        const bool live = from[n] != nullptr && channel < S::kHeadDim;
        q[n][i] = live ? __ldcg(from[n] + channel) : 0.0f;
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int column = first + n * warps;
      if (column < S::kColumns) store_query<S>(args, work, queries, column, q[n], lane);
    }
  }
}

// What each page got is kept until the sums over all of them are known (attention_mass.cu).
template <class S>
__device__ __forceinline__ void store_page_sums(const AttentionArgs& args, const Work& work,
                                                int band, const Team<S>& team, FragmentLane lane,
                                                const float (&added)[S::kScoreTiles][2],
                                                const WarpSums<S>& sums) {
  const std::ptrdiff_t head = work.sequence * args.shape.num_kv_heads + work.kv_head;
  const std::ptrdiff_t index = ((head * args.page_capacity) << args.band_shift) + band;
  float2* to = args.page_sums + index * args.page_columns + work.block * S::kColumns + 2 * lane.t;
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float sum = sum_over_tokens(added[n][c]);
      if (lane.g == 0) to[8 * team.column_tile(n) + c] = make_float2(sums.exponent[n][c], sum);
    }
  }
}

// How many tokens a slab's columns see.
struct Visible {
  int first;          // of the slab, counted as `tokens` counts
  const int* tokens;  // [columns]: so many are seen
  bool hidden;        // some column does not see all of the slab

  template <class S>
  __device__ static Visible of(const AttentionArgs& args, const Work& work, int slab,
                               const Queries<S>& queries) {
    const bool gathered = slab < work.gathered_slabs;
    Visible visible;
    visible.first = (gathered ? slab : slab - work.gathered_slabs) * S::kSlabTokens;
    visible.tokens = gathered ? queries.gathered : queries.visible;
    const int all_see =
        gathered ? work.kv->num_gathered : work.state.first_position + 1 - work.state.first_full;
    visible.hidden = visible.first + S::kSlabTokens > all_see;
    return visible;
  }
};

// Phase 2: a band.
template <class S, class Stream>
__device__ __forceinline__ void read_band(const AttentionArgs& args, const Work& work, int band,
                                          const Queries<S>& queries, const Team<S>& team,
                                          FragmentLane lane, Stream& stream, WarpSums<S>& sums) {
  const int first = team.column_tile(0);
  float products[S::kScoreTiles][S::kTokenTiles][4];
  ScoreMap<S> map;
  const std::byte* keys = stream.template next<kKeys>();
  team.put_away(sums.out[S::kColumnTiles - 1], lane);
  page_scores<S>(keys, queries.tile(first), queries.factors + 8 * first, lane, products, map,
                 stream.template ahead<kKeys>());
  stream.template release<kKeys, true>();
  const std::byte* values = stream.template next<kValues>();
  const float exponent = value_exponent<S>(values + S::kPlanes * S::kPlaneBytes, lane);
  sums.take_back(team, lane);
  const bool raised = make_room<S, S::kTokenTiles>(products, map, exponent, team, lane, sums);
  to_probabilities<S, S::kTokenTiles>(products, map, sums);
  float added[S::kScoreTiles][2];
  add_page_values<S>(values, raised, team, lane, products, sums, added,
                     stream.template ahead<kValues>());
  stream.template release<kValues, true>();
  if (args.page_capacity > 0 && work.kv->page_mass != nullptr) {
    sums.take_back(team, lane);
    store_page_sums<S>(args, work, band, team, lane, added, sums);
  }
}

// Phase 3: a slab.
template <class S, class Stream>
__device__ __forceinline__ void read_slab(const AttentionArgs& args, const Work& work, int slab,
                                          const Queries<S>& queries, const Team<S>& team,
                                          FragmentLane lane, Stream& stream, WarpSums<S>& sums) {
  const int first = team.column_tile(0);
  float products[S::kScoreTiles][S::kSlabTiles][4];
  ScoreMap<S> map;
  slab_scores<S>(stream.template next<kKeys>(), queries.tile(first), queries.factors + 8 * first,
                 lane, products, map);
  stream.template release<kKeys, false>();
  const Visible visible = Visible::of<S>(args, work, slab, queries);
  if (visible.hidden) {
    hide_unseen<S>(visible.first, visible.tokens + 8 * first, lane, products);
  }
  sums.take_back(team, lane);
  const bool raised = make_room<S, S::kSlabTiles>(products, map, 0.0f, team, lane, sums);
  to_probabilities<S, S::kSlabTiles>(products, map, sums);
  add_slab_values<S>(stream.template next<kValues>(), visible.hidden, visible.first, visible.tokens,
                     raised, team, lane, products, sums);
  stream.template release<kValues, false>();
}

template <class S, class Stream>
__device__ __forceinline__ void read_split(const AttentionArgs& args, const Work& work,
                                           const Queries<S>& queries, const Team<S>& team,
                                           FragmentLane lane, Stream& stream, WarpSums<S>& sums) {
  const int first = work.first_part<S>(team.index);
  const int num_bands = work.num_bands, num_parts = work.num_parts, stride = work.part_stride;
  int part = first;
  for (; part < num_bands; part += stride) {
    read_band<S>(args, work, part, queries, team, lane, stream, sums);
    let_next_kernel_start();  // not before: its copies would delay those of the first parts
  }
  sums.end_codes();
  for (; part < num_parts; part += stride) {
    read_slab<S>(args, work, part - num_bands, queries, team, lane, stream, sums);
    let_next_kernel_start();
  }
  if constexpr (S::kTeam > 1) {
    static_assert(S::kPlanes == 2, "parts are given in pairs");
    const int first_teams = part - (first - S::kBeside * work.split);
    if (first_teams < num_parts) team.meet_for_no_part();
  }
}

// What this CTA reads; false: nothing.
template <class S>
__device__ __forceinline__ bool find_work(const AttentionArgs& args, FragmentLane lane,
                                          Work& work) {
  const int teams = blockDim.x / (32 * S::kTeam);
  if constexpr (S::kPlanes == 1) {
    if (args.draft_slots > 0) {
      const DraftSlot slot = DraftSlot::of<S>(args, blockIdx.y, teams, lane);
      if (slot.sequence < 0) return false;
      work = Work::of<S>(args, slot.sequence, teams);
      work.share_draft<S>(slot.splits);
      work.take<S>(args, blockIdx.x, args.column_blocks, slot.split);
      return work.live_columns<S>(args) > 0;
    }
  }
  work = Work::of<S>(args, blockIdx.z, teams);
  work.take<S>(args, blockIdx.x, args.column_blocks, blockIdx.y);
  return work.live_columns<S>(args) > 0 && work.split < work.splits;
}

// Grid: [column blocks * kv heads, splits, sequences]; of a batch's drafts [.., slots].
template <class S>
__global__ void __launch_bounds__(32 * S::kTeam * S::kMaxTeams, S::kCtas)
    attention_kernel(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const FragmentLane lane;
  Work work;
  if (!find_work<S>(args, lane, work)) {
    // The end of this grid says that the kernels before it have ended, also where no CTA has work.
    if ((blockIdx.x | blockIdx.y | blockIdx.z) == 0) wait_for_previous_kernels();
    return;
  }
  const int live = work.live_columns<S>(args);
  const std::ptrdiff_t head = work.sequence * args.shape.num_kv_heads + work.kv_head;
  std::byte* streams = shared + S::kSlotsOffset;
  const TeamPartials<S> partials(shared + S::kExponentsOffset, streams, work.teams);
  const bool merges_apart = S::kMergesApart || args.tickets == nullptr;
  int ticket = -1;  // of one thread, looked at when it has long come
  {
    const Queries<S> queries(shared);
    const Team<S> team(streams + work.teams * S::kStreamBytes);
    std::byte* slots = streams + team.index * S::kStreamBytes;
    const auto units = reinterpret_cast<const std::byte**>(slots + S::kSlots * S::kSlotBytes +
                                                           team.member * UnitTable<S>::kBytes);
    PieceStream<S> stream(args, {args, work, {units}, team, lane}, slots, team, lane);
    stream.start();
    load_queries<S, S::kScoreTiles>(args, work, queries, threadIdx.x / 32, blockDim.x / 32, lane);
    stream.begin();
    __syncthreads();
    WarpSums<S> sums;
    sums.put_away(team, lane);
    read_split<S>(args, work, queries, team, lane, stream, sums);
    sums.take_back(team, lane);
    if (!merges_apart && threadIdx.x == 0) ticket = atomicAdd(args.tickets + head, 1);
    store_exponents<S>(sums, team, lane, partials);
    __syncthreads();
    store_warp<S>(sums, team, live, lane, partials);
  }
  __syncthreads();
  const std::ptrdiff_t columns = work.partial<S>(args);
  store_partial<S>(partials, live, args.partials + columns * S::kHeadDim,
                   args.partial_sums + columns);
  if constexpr (!S::kMergesApart) {
    if (merges_apart) return;
    const int blocks = (work.columns(args) + S::kColumns - 1) / S::kColumns;
    const bool last = ticket == work.splits * blocks - 1;
    if (last) args.tickets[head] = 0;
    if (__syncthreads_or(last)) merge_splits<S>(args, work, shared + S::kSlotsOffset);
  }
}

}  // namespace quantspec::cuda
