// The end of a CTA: its teams' sums become one partial result, and one CTA of a sequence's kv head
// makes the output of all of them; of many columns, another kernel (attention_merge.cu). All in
// fixed order.
//
// That CTA is the one that takes the last ticket, so that all others are under way. It waits for
// their words themselves, in memory that is zero until they come and that it leaves zero: a zero is
// written as -0, and whoever reads a word clears it. A fence, an arrival, and loads after that
// would be three ways to the L2 cache one after the other instead of one.
#pragma once

#include "backend/cuda/attention_softmax.cuh"

namespace quantspec::cuda {

// Over the lanes that hold a column: in every one of them the same sum.
__device__ __forceinline__ float sum_over_tokens(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// What the teams of a CTA leave in shared memory: exponents, while others still read; then,
// relative to a column's greatest exponent, rows of channels, where slots were if CTAs have one
// split each, and sums.
template <class S>
struct TeamPartials {
  float* exponents;  // [team, column]
  float* sums;       // [team, column]
  float* zeros;      // [value group, team, column], where a team is two warps: WarpSums' summed up
  float* rows;       // [team, column] of kMergeRow, teams kMergeStride apart
  int teams;
  // stats: kStatBytes; merged: merge_bytes(teams), or null where rows lie elsewhere
  __device__ TeamPartials(std::byte* stats, std::byte* merged, int team_count)
      : exponents(reinterpret_cast<float*>(stats)),
        sums(exponents + S::kMaxTeams * S::kColumns),
        zeros(sums + S::kMaxTeams * S::kColumns),
        rows(reinterpret_cast<float*>(merged)),
        teams(team_count) {}

  __device__ __forceinline__ float greatest_exponent(int column) const {
    float most = exponents[column];
#pragma unroll
    for (int team = 1; team < S::kMaxTeams; ++team) {
      if (team < teams) {
        most = fmaxf(most, exponents[team * S::kColumns + column]);
      }
    }
    return most;
  }
};

template <class S>
__device__ __forceinline__ void store_exponents(const WarpSums<S>& sums, const Team<S>& team,
                                                FragmentLane lane,
                                                const TeamPartials<S>& partials) {
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
    const int at = team.index * S::kColumns + 8 * team.column_tile(n) + 2 * lane.t;
    if constexpr (S::kTeam > 1) {
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float zero = sum_over_tokens(sums.zero[i][n][c]);
          if (lane.g == 0) partials.zeros[i * S::kMaxTeams * S::kColumns + at + c] = zero;
        }
      }
    }
    if (lane.g != 0) continue;
    *reinterpret_cast<float2*>(partials.exponents + at) =
        make_float2(sums.exponent[n][0], sums.exponent[n][1]);
  }
}

// When the exponents of all teams are there, and no slot is read any more.
template <class S>
__device__ __forceinline__ void store_warp(const WarpSums<S>& sums, const Team<S>& team, int live,
                                           FragmentLane lane, const TeamPartials<S>& partials) {
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int first = 8 * team.column_tile(n) + c, column = first + 2 * lane.t;
      if (first >= live) continue;
      const int at = team.index * S::kColumns + column;
      float sum = 0.0f, zero[S::kValueGroups];
      if (n < S::kScoreTiles) sum = sum_over_tokens(sums.sum[n % S::kScoreTiles][c]);
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) {
        zero[i] = S::kTeam == 1 ? sum_over_tokens(sums.zero[i][n % S::kScoreTiles][c])
                                : partials.zeros[i * S::kMaxTeams * S::kColumns + at];
      }
      if (column >= live) continue;
      const float exponent =
          S::kTeam == 1 ? sums.exponent[n % S::kScoreTiles][c] : partials.exponents[at];
      const float weight = exp2_approximately(exponent - partials.greatest_exponent(column));
      float* row = partials.rows + team.index * S::kMergeStride + column * S::kMergeRow +
                   16 * team.channel_tile() + lane.g;
#pragma unroll
      for (int tile = 0; tile < S::kOutTiles; ++tile) {
        const float offset = zero[S::kTeam > 1 ? 0 : 16 * tile / kValueGroup];
        row[16 * tile] = (sums.out[n][tile][c] + offset) * weight;
        row[16 * tile + 8] = (sums.out[n][tile][2 + c] + offset) * weight;
      }
      if (n < S::kScoreTiles && lane.g == 0) partials.sums[at] = sum * weight;
    }
  }
}

__device__ __forceinline__ float4 add(float4 x, float4 y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}

// The partial result of this CTA's split, of `live` columns.
template <class S>
__device__ __forceinline__ void store_partial(const TeamPartials<S>& partials, int live,
                                              float* partial, float2* partial_sums) {
  const int teams = partials.teams;
#pragma unroll 1
  for (int i = threadIdx.x; i < live * S::kHeadDim / 4; i += blockDim.x) {
    const int column = 4 * i / S::kHeadDim, channel = 4 * i % S::kHeadDim;
    const float* row = partials.rows + column * S::kMergeRow + channel;
    float4 out = *reinterpret_cast<const float4*>(row);
#pragma unroll
    for (int team = 1; team < S::kMaxTeams; ++team) {
      if (team >= teams) break;
      out = add(out, *reinterpret_cast<const float4*>(row + team * S::kMergeStride));
    }
    store_relaxed(reinterpret_cast<float4*>(partial) + i,
                  {nonzero(out.x), nonzero(out.y), nonzero(out.z), nonzero(out.w)});
    if (channel != 0) continue;
    float sum = partials.sums[column];
    for (int team = 1; team < teams; ++team) sum += partials.sums[team * S::kColumns + column];
    store_relaxed(partial_sums + column,
                  {nonzero(partials.greatest_exponent(column)), nonzero(sum)});
  }
}

// The splits of a block of columns, where they lie and what becomes of them.
template <class S>
struct SplitPartials {
  float4* rows;    // [split, column, channels / 4]
  float2* sums;    // [split, column]
  float2* totals;  // [column] in shared memory: exponent, 1 / sum
  int splits, block, live;

  // Channels 4 quad .. 4 quad + 3 of the block's columns.
  __device__ __forceinline__ void store(const AttentionArgs& args, const Work& work, int quad,
                                        float4 sum, float inverse) const {
    const int column = 4 * quad / S::kHeadDim, channel = 4 * quad % S::kHeadDim;
    const int index = block * S::kColumns + column, row = args.row_of(index);
    const std::ptrdiff_t query_head =
        static_cast<std::ptrdiff_t>(work.state.first_row + row) * args.num_heads +
        work.kv_head * args.group + args.head_of(index);
    *reinterpret_cast<float4*>(args.out + query_head * S::kHeadDim + channel) = {
        sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse};
  }
};

__device__ __forceinline__ void add_product(float4& sum, float4 x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x);
  sum.y = fmaf(x.y, weight, sum.y);
  sum.z = fmaf(x.z, weight, sum.z);
  sum.w = fmaf(x.w, weight, sum.w);
}
// With the neighbouring lane's.
__device__ __forceinline__ float4 add_neighbour(float4 x) {
  return add(x, {__shfl_xor_sync(~0u, x.x, 1), __shfl_xor_sync(~0u, x.y, 1),
                 __shfl_xor_sync(~0u, x.z, 1), __shfl_xor_sync(~0u, x.w, 1)});
}

// Two neighbouring lanes merge four channels of a column, each every other split.
//
// Few splits: each lane finds the weights of its own itself. NOTE: that repeats work, but takes
// fewer instructions, and they come cold from memory: of a layer at 4k, 2 us less than merge_many.
constexpr int few_splits(int planes) { return planes == 1 ? 10 : 16; }

template <class S>
__device__ __forceinline__ void merge_few(const AttentionArgs& args, const Work& work,
                                          const SplitPartials<S>& from) {
  constexpr int kBatch = few_splits(S::kPlanes) / 2;
  const int lane = threadIdx.x % 2;
#pragma unroll 1
  for (int base = threadIdx.x / 32 * 16; base < from.live * S::kHeadDim / 4;
       base += blockDim.x / 2) {
    const int quad = base + threadIdx.x % 32 / 2;
    const int column = 4 * quad / S::kHeadDim;
    const bool live = column < from.live;
    float4* rows = from.rows + lane * S::kColumns * S::kHeadDim / 4 + quad;
    const float2* sums = from.sums + lane * S::kColumns + column;
    float4 x[kBatch];
    float2 s[kBatch];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        s[i] = {-1e30f, 1.0f};
        x[i] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (!live || 2 * i + lane >= from.splits) continue;
        s[i] = load_relaxed(sums + 2 * i * S::kColumns);
        x[i] = load_relaxed(rows + 2 * i * S::kColumns * S::kHeadDim / 4);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) complete = complete && is_there(s[i]) && is_there(x[i]);
    } while (!complete);
    float exponent = s[0].x;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) exponent = fmaxf(exponent, s[i].x);
    exponent = fmaxf(exponent, __shfl_xor_sync(~0u, exponent, 1));
    float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!live || 2 * i + lane >= from.splits) continue;
      const float weight = exp2_approximately(s[i].x - exponent);
      sum = fmaf(s[i].y, weight, sum);
      add_product(out, x[i], weight);
      rows[2 * i * S::kColumns * S::kHeadDim / 4] = {0.0f, 0.0f, 0.0f, 0.0f};
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    out = add_neighbour(out);
    if (!live || lane != 0) continue;
    const float inverse = __fdividef(1.0f, sum);
    from.store(args, work, quad, out, inverse);
    if (4 * quad % S::kHeadDim == 0) from.totals[column] = make_float2(exponent, inverse);
  }
  __syncthreads();  // nobody waits for sums any more
  for (int i = threadIdx.x; i < from.splits * S::kColumns; i += blockDim.x) {
    from.sums[i] = make_float2(0.0f, 0.0f);
  }
}

// Many splits: a warp for each column finds their weights, [split, column] in shared memory, while
// rows are on their way.
template <class S>
__device__ __forceinline__ void merge_sums(const SplitPartials<S>& from, float* weights) {
  constexpr int kBatch = 2;  // splits of a lane
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int column = threadIdx.x / 32; column < from.live; column += blockDim.x / 32) {
    float exponent = -1e30f, sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < from.splits; first += 32 * kBatch) {
      float2 part[kBatch];
      bool complete;
      do {
        complete = true;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int split = first + 32 * i + lane;
          part[i] = {-1e30f, 1.0f};
          if (split < from.splits) part[i] = load_relaxed(from.sums + split * S::kColumns + column);
          complete = complete && is_there(part[i]);
        }
      } while (!complete);
      float most = exponent;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) most = fmaxf(most, part[i].x);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
      }
      sum *= exp2_approximately(exponent - most);
      exponent = most;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int split = first + 32 * i + lane;
        if (split >= from.splits) continue;
        sum = fmaf(part[i].y, exp2_approximately(part[i].x - exponent), sum);
        weights[split * S::kColumns + column] = part[i].x;
        from.sums[split * S::kColumns + column] = {0.0f, 0.0f};
      }
    }
    for (int split = lane; split < from.splits; split += 32) {
      float& weight = weights[split * S::kColumns + column];
      weight = exp2_approximately(weight - exponent);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane == 0) from.totals[column] = make_float2(exponent, __fdividef(1.0f, sum));
  }
}

template <class S>
__device__ __forceinline__ void merge_many(const AttentionArgs& args, const Work& work,
                                           const SplitPartials<S>& from, float* weights) {
  constexpr int kBatch = S::kPlanes == 1 ? 17 : 8;  // under way at a time, of 33 or 16
  constexpr int kStride = S::kColumns * S::kHeadDim / 4;
  const int lane = threadIdx.x % 2;
  bool made_weights = false;
#pragma unroll 1
  for (int base = 0; base < from.live * S::kHeadDim / 4; base += blockDim.x / 2) {
    const int quad = base + threadIdx.x / 2;
    const int column = 4 * quad / S::kHeadDim;
    const bool live = column < from.live;
    float4* rows = from.rows + lane * kStride + quad;
    const float* weight = weights + lane * S::kColumns + column;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int left = from.splits - lane; left > -lane; left -= 2 * kBatch) {
      float4 x[kBatch];
      bool complete;
      do {
        complete = true;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          x[i] = {1.0f, 1.0f, 1.0f, 1.0f};
          if (live && 2 * i < left) x[i] = load_relaxed(rows + 2 * i * kStride);
        }
        if (!made_weights) {
          merge_sums<S>(from, weights);
          __syncthreads();
          made_weights = true;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) complete = complete && is_there(x[i]);
      } while (!complete);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (!live || 2 * i >= left) continue;
        add_product(sum, x[i], weight[2 * i * S::kColumns]);
        rows[2 * i * kStride] = {0.0f, 0.0f, 0.0f, 0.0f};
      }
      rows += 2 * kBatch * kStride;
      weight += 2 * kBatch * S::kColumns;
    }
    sum = add_neighbour(sum);
    if (live && lane == 0) from.store(args, work, quad, sum, from.totals[column].y);
  }
}

// Output of all columns of a sequence's kv head, and totals for the masses of pages. `shared`:
// [columns] of two floats, [splits, columns] of one.
template <class S>
__device__ __forceinline__ void merge_splits(const AttentionArgs& args, const Work& work,
                                             std::byte* shared) {
  const std::ptrdiff_t head = work.sequence * args.shape.num_kv_heads + work.kv_head;
  float2* totals = reinterpret_cast<float2*>(shared);
  float* weights = reinterpret_cast<float*>(totals + S::kColumns);
  for (int block = 0; block * S::kColumns < work.columns(args); ++block) {
    const int live = min(S::kColumns, work.columns(args) - block * S::kColumns);
    const std::ptrdiff_t columns = (head * args.column_blocks + block) * args.splits * S::kColumns;
    const SplitPartials<S> from{reinterpret_cast<float4*>(args.partials + columns * S::kHeadDim),
                                args.partial_sums + columns,
                                totals,
                                work.splits,
                                block,
                                live};
    if (work.splits <= few_splits(S::kPlanes)) {
      merge_few<S>(args, work, from);
    } else {
      merge_many<S>(args, work, from, weights);
    }
    if (args.page_capacity > 0 && work.kv->page_mass != nullptr) {
      __syncthreads();
      float2* to = args.totals + head * args.page_columns + block * S::kColumns;
      for (int i = threadIdx.x; i < live; i += blockDim.x) to[i] = totals[i];
    }
    if (args.column_blocks > 1) __syncthreads();
  }
}

}  // namespace quantspec::cuda
