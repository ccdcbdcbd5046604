// The end of a CTA: its warps' sums become one partial result, and the CTA that arrives last of a
// sequence's kv head makes the output of all of them. Both in fixed order.
#pragma once

#include "backend/cuda/attention_softmax.cuh"

namespace quantspec::cuda {

// Over the lanes that hold a column: in every one of them the same sum.
__device__ __forceinline__ float sum_over_tokens(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// Teams' sums in shared memory: [team, column] rows of channels, then [team, column] of exponent,
// sum, zeros.
template <class S>
struct MergeBuffer {
  float* rows;
  float* stats;
  __device__ MergeBuffer(std::byte* shared, int teams)
      : rows(reinterpret_cast<float*>(shared)),
        stats(rows + teams * S::kColumns * S::kMergeStride) {}
  __device__ float* row(int team, int column) const {
    return rows + (team * S::kColumns + column) * S::kMergeStride;
  }
  __device__ float* stat(int team, int column) const {
    return stats + (team * S::kColumns + column) * S::kMergeStats;
  }
};

template <class S>
__device__ __forceinline__ void store_warp(const WarpSums<S>& sums, const Team<S>& team, Lane lane,
                                           const MergeBuffer<S>& buffer) {
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * team.column_tile(n) + 2 * lane.t + c;
      float* row = buffer.row(team.index, column) + 16 * team.channel_tile();
#pragma unroll
      for (int tile = 0; tile < S::kOutTiles; ++tile) {
        row[16 * tile + lane.g] = sums.out[n][tile][c];
        row[16 * tile + lane.g + 8] = sums.out[n][tile][2 + c];
      }
      if (n >= S::kScoreTiles) continue;
      float* stat = buffer.stat(team.index, column);
      const float sum = sum_over_tokens(sums.sum[n][c]);
      float zero[S::kValueGroups];
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) zero[i] = sum_over_tokens(sums.zero[n][i][c]);
      if (lane.g != 0) continue;
      stat[0] = sums.exponent[n][c];
      stat[1] = sum;
#pragma unroll
      for (int i = 0; i < S::kValueGroups; ++i) stat[2 + i] = zero[i];
    }
  }
}

__device__ __forceinline__ void add_product(float4& sum, float4 x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x);
  sum.y = fmaf(x.y, weight, sum.y);
  sum.z = fmaf(x.z, weight, sum.z);
  sum.w = fmaf(x.w, weight, sum.w);
}

// The partial result of this CTA's split, of `live` columns.
template <class S>
__device__ __forceinline__ void store_partial(const MergeBuffer<S>& buffer, int live, int teams,
                                              float* partial, float2* partial_sums) {
#pragma unroll 1
  for (int i = threadIdx.x; i < live * S::kHeadDim / 4; i += blockDim.x) {
    const int column = 4 * i / S::kHeadDim, channel = 4 * i % S::kHeadDim;
    float exponent = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int team = 0; team < S::kMaxTeams; ++team) {
      if (team < teams) exponent = fmaxf(exponent, buffer.stat(team, column)[0]);
    }
    float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int team = 0; team < S::kMaxTeams; ++team) {
      if (team >= teams) break;
      const float* stat = buffer.stat(team, column);
      const float weight = exp2_approximately(stat[0] - exponent);
      const float zero = stat[2 + channel / kValueGroup];
      float4 x = *reinterpret_cast<const float4*>(buffer.row(team, column) + channel);
      x = {x.x + zero, x.y + zero, x.z + zero, x.w + zero};
      add_product(out, x, weight);
      sum = fmaf(stat[1], weight, sum);
    }
    *reinterpret_cast<float4*>(partial + 4 * i) = out;
    if (channel == 0) partial_sums[column] = make_float2(exponent, sum);
  }
}

// True in every thread of the CTA that arrives last. What the others wrote before is visible then.
// `last`: shared memory that nobody reads any more.
__device__ __forceinline__ bool arrive_last(int* arrivals, int expected, int* last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    *last = add_acquire_release(arrivals, 1) == expected - 1;
    if (*last) *arrivals = 0;
  }
  __syncthreads();
  return *last;
}

// The columns' exponents and sums over all splits, a warp for each: each split's weight to
// `weights` [split, column]; to `sums` [column]: exponent, 1 / sum.
template <class S>
__device__ __forceinline__ void merge_sums(const float2* partial_sums, int splits, int live,
                                           float* weights, float2* sums) {
  const int lane = threadIdx.x % 32;
  for (int column = threadIdx.x / 32; column < live; column += blockDim.x / 32) {
    float exponent = -INFINITY, sum = 0.0f;
    for (int split = lane; split < splits; split += 32) {
      exponent = fmaxf(exponent, __ldcg(partial_sums + split * S::kColumns + column).x);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      exponent = fmaxf(exponent, __shfl_xor_sync(~0u, exponent, lanes));
    }
    for (int split = lane; split < splits; split += 32) {
      const float2 part = __ldcg(partial_sums + split * S::kColumns + column);
      const float weight = exp2_approximately(part.x - exponent);
      weights[split * S::kColumns + column] = weight;
      sum = fmaf(part.y, weight, sum);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane == 0) sums[column] = make_float2(exponent, 1.0f / sum);
  }
}

// Four channels of one column over all splits are four sums, each over every fourth split, and then
// the sum of those: by kLanes neighbouring lanes, four or, where columns are work enough, one. Many
// loads are under way at a time.
inline constexpr int kMergeSums = 4;

__device__ __forceinline__ float4 add(float4 x, float4 y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}
__device__ __forceinline__ float4 shuffle_xor(unsigned mask, float4 x, int lanes) {
  return {__shfl_xor_sync(mask, x.x, lanes), __shfl_xor_sync(mask, x.y, lanes),
          __shfl_xor_sync(mask, x.z, lanes), __shfl_xor_sync(mask, x.w, lanes)};
}

template <class S, int kLanes>
struct SplitParts {
  static constexpr int kSums = kMergeSums / kLanes;   // of this lane
  static constexpr int kBatch = kLanes == 1 ? 4 : 9;  // splits of each at a time
  const float* partials;
  int lane, splits;
  float4 part[kSums][kBatch];

  __device__ __forceinline__ void load(int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        const int split = first + lane + j + i * kMergeSums;
        if (split >= splits) continue;
        part[j][i] = __ldcg(reinterpret_cast<const float4*>(
            partials + static_cast<std::ptrdiff_t>(split) * S::kColumns * S::kHeadDim));
      }
    }
  }
  __device__ __forceinline__ void add_parts(const float* weights, int first,
                                            float4 (&sums)[kSums]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        const int split = first + lane + j + i * kMergeSums;
        if (split < splits) add_product(sums[j], part[j][i], weights[split * S::kColumns]);
      }
    }
  }
  __device__ __forceinline__ float4 sum(const float* weights) {
    float4 sums[kSums];
#pragma unroll
    for (float4& x : sums) x = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 0; first < splits; first += kMergeSums * kBatch) {
      if (first > 0) load(first);
      add_parts(weights, first, sums);
    }
    if constexpr (kLanes == 1) {
      return add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    } else {
      const unsigned mask = 0xfu << (threadIdx.x % 32 & ~3u);  // the lanes of this column
      const float4 pair = add(sums[0], shuffle_xor(mask, sums[0], 1));
      return add(pair, shuffle_xor(mask, pair, 2));
    }
  }
};

// The output of the columns of a block. `make_weights`: merge_sums, called when the first loads are
// under way.
template <class S, int kLanes, typename MakeWeights>
__device__ __forceinline__ void merge_block(const AttentionArgs& args, const Work& work, int block,
                                            int live, const float* partials, const float2* sums,
                                            const float* weights, const MakeWeights& make_weights) {
  const int group = args.num_heads / args.shape.num_kv_heads;
  const int quads = live * S::kHeadDim / 4;
  int quad = threadIdx.x / kLanes;
  SplitParts<S, kLanes> parts;
  parts.lane = threadIdx.x % kLanes;
  parts.splits = args.splits;
  parts.partials = partials + 4 * quad;
  if (quad < quads) parts.load(0);
  make_weights();
#pragma unroll 1
  while (quad < quads) {
    const int column = 4 * quad / S::kHeadDim, channel = 4 * quad % S::kHeadDim;
    const float4 sum = parts.sum(weights + column);
    quad += blockDim.x / kLanes;
    parts.partials = partials + 4 * quad;
    if (quad < quads) parts.load(0);
    if (parts.lane != 0) continue;
    const int index = block * S::kColumns + column;
    const std::ptrdiff_t row = work.state.first_row + index / group;
    const int query_head = work.kv_head * group + index % group;
    float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
    add_product(out, sum, sums[column].y);
    *reinterpret_cast<float4*>(args.out + (row * args.num_heads + query_head) * S::kHeadDim +
                               channel) = out;
  }
}

// Output of all columns of a sequence's kv head, and totals for the masses of pages. `shared`:
// [columns] of two floats, [splits, columns] of one.
template <class S>
__device__ __forceinline__ void merge_partials(const AttentionArgs& args, const Work& work,
                                               float2* shared) {
  const std::ptrdiff_t head = work.sequence * args.shape.num_kv_heads + work.kv_head;
  float2* sums = shared;
  float* weights = reinterpret_cast<float*>(shared + S::kColumns);
  for (int block = 0; block < args.column_blocks; ++block) {
    const int live = min(S::kColumns, work.columns(args) - block * S::kColumns);
    const std::ptrdiff_t first = (head * args.column_blocks + block) * args.splits * S::kColumns;
    const float* partials = args.partials + first * S::kHeadDim;
    const auto make_weights = [&] {
      merge_sums<S>(args.partial_sums + first, args.splits, live, weights, sums);
      __syncthreads();
    };
    merge_block<S, S::kColumnTiles == 1 ? kMergeSums : 1>(args, work, block, live, partials, sums,
                                                          weights, make_weights);
    if (args.batch.kv[work.sequence].page_mass != nullptr) {
      float2* totals = args.totals + head * args.page_columns + block * S::kColumns;
      for (int i = threadIdx.x; i < live; i += blockDim.x) totals[i] = sums[i];
    }
    __syncthreads();
  }
}

}  // namespace quantspec::cuda
