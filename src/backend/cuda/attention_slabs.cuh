// A slab of full-precision tokens: the gathered ones, which every row sees, and those of the ring
// (or of a whole cache in full precision), of which a row sees those up to its own.
#pragma once

#include "backend/cuda/attention_softmax.cuh"

namespace quantspec::cuda {

// Products of queries and keys. As page_scores.
template <class S>
__device__ __forceinline__ void slab_scores(const std::byte* piece, const std::byte* queries,
                                            const float* factors, FragmentLane lane,
                                            float (&products)[S::kScoreTiles][S::kSlabTiles][4],
                                            ScoreMap<S>& map) {
  // Matrices of an ldmatrix: tokens 0-7 and 8-15 of channels 0-7, then of 8-15.
  const std::byte* row = piece + lane.index % 16 * S::kRowBytes + lane.index / 16 * 16;
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < S::kSlabTiles; ++i) clear(products[n][i]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      map.multiplier[n][c] = factors[8 * n + 2 * lane.t + c];
      map.bias[n][c] = 0.0f;
    }
  }
#pragma unroll 2
  for (int tile = 0; tile < S::kChannelTiles; ++tile) {
    std::uint32_t keys[S::kSlabTiles][4];
#pragma unroll
    for (int i = 0; i < S::kSlabTiles; ++i) {
      load_matrices(row + i * 16 * S::kRowBytes + 32 * tile, keys[i]);
    }
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
      const Operand b = load_query(queries, n * S::kChannelTiles + tile, lane);
#pragma unroll
      for (int i = 0; i < S::kSlabTiles; ++i) mma_f16(products[n][i], keys[i], b);
    }
  }
}

// Products of tokens that a column does not see become -inf. `first`: of the slab, counted as
// `visible` ([columns]: so many tokens are seen) counts.
template <class S>
__device__ __forceinline__ void hide_unseen(int first, const int* visible, FragmentLane lane,
                                            float (&products)[S::kScoreTiles][S::kSlabTiles][4]) {
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int seen = visible[8 * n + 2 * lane.t + e % 2] - first;
#pragma unroll
      for (int i = 0; i < S::kSlabTiles; ++i) {
        const int token = 16 * i + lane.g + e / 2 * 8;
        if (token >= seen) products[n][i][e] = -INFINITY;
      }
    }
  }
}

// The values of one tile as an A operand (channels x tokens).
template <class S>
__device__ __forceinline__ void load_values(const std::byte* piece, int token_tile,
                                            int channel_tile, FragmentLane lane,
                                            std::uint32_t (&values)[4]) {
  // Matrices: channels 0-7 and 8-15 of tokens 0-7, then of 8-15.
  const int token = 16 * token_tile + lane.index % 8 + lane.index / 16 * 8;
  const std::byte* row = piece + token * S::kRowBytes + lane.index / 8 % 2 * 16;
  load_matrices_transposed(row + 32 * channel_tile, values);
}

template <class S>
__device__ __forceinline__ bool all_finite(const std::byte* piece, const Team<S>& team,
                                           FragmentLane lane) {
  __half2 nan = __float2half2_rn(0.0f);
#pragma unroll 4
  for (int tile = 0; tile < S::kOutTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < S::kSlabTiles; ++i) {
      std::uint32_t values[4];
      load_values<S>(piece, i, team.channel_tile() + tile, lane, values);
#pragma unroll
      for (const std::uint32_t& x : values) {
        nan = __hfma2(reinterpret_cast<const __half2&>(x), __float2half2_rn(0.0f), nan);
      }
    }
  }
  return __all_sync(~0u, __low2float(nan) == 0.0f && __high2float(nan) == 0.0f);
}

// The pair of tokens from `token` on, of which the first `seen` of the slab are seen.
__device__ __forceinline__ std::uint32_t seen_of(std::uint32_t pair, int token, int seen) {
  return pair & ((token < seen ? 0xffffu : 0u) | (token + 1 < seen ? 0xffff0000u : 0u));
}

// `out` plus values times probabilities where a value that some column does not see is NaN or
// infinite, so that its zero probability does not hide it: a product for each column, of what it
// sees. The bits are those of a plain product.
inline __device__ __noinline__ float4 add_seen_product(float4 out, uint4 values, uint2 b,
                                                       int token_tile, const int* visible,
                                                       int first) {
  const FragmentLane lane;
  const int token = 16 * token_tile + 2 * lane.t;
  float4 result = out;
  for (int column = 0; column < 8; ++column) {
    const int seen = visible[column] - first;
    const std::uint32_t seen_values[4] = {
        seen_of(values.x, token, seen), seen_of(values.y, token, seen),
        seen_of(values.z, token + 8, seen), seen_of(values.w, token + 8, seen)};
    float product[4] = {out.x, out.y, out.z, out.w};
    mma_f16(product, seen_values, b.x, b.y);
    if (column == 2 * lane.t) result.x = product[0], result.z = product[2];
    if (column == 2 * lane.t + 1) result.y = product[1], result.w = product[3];
  }
  return result;
}

// sums += values times probabilities. `hidden`: some column does not see some token.
template <class S>
__device__ __forceinline__ void add_slab_values(
    const std::byte* piece, bool hidden, int first, const int* visible, bool raised,
    const Team<S>& team, FragmentLane lane,
    float (&probabilities)[S::kScoreTiles][S::kSlabTiles][4], WarpSums<S>& sums) {
  std::uint32_t b[S::kColumnTiles][S::kSlabTiles][2];
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < S::kSlabTiles; ++i) {
      float(&p)[4] = probabilities[n][i];
      to_operand(p, b[n][i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.sum[n][e % 2] += p[e];
    }
  }
  sums.put_away(team, lane);
  team.share(b, raised, lane,
             [&](int n, int c, float factor) { sums.rescale_output(n, c, factor); });
  const bool plain = !hidden || all_finite<S>(piece, team, lane);
#pragma unroll
  for (int tile = 0; tile < S::kOutTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < S::kSlabTiles; ++i) {
      std::uint32_t values[4];
      load_values<S>(piece, i, team.channel_tile() + tile, lane, values);
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        if (plain) {
          mma_f16(sums.out[n][tile], values, b[n][i][0], b[n][i][1]);
        } else {
          float(&out)[4] = sums.out[n][tile];
          const float4 sum = add_seen_product(
              {out[0], out[1], out[2], out[3]}, {values[0], values[1], values[2], values[3]},
              {b[n][i][0], b[n][i][1]}, i, visible + 8 * team.column_tile(n), first);
          out[0] = sum.x, out[1] = sum.y, out[2] = sum.z, out[3] = sum.w;
        }
      }
    }
  }
}

}  // namespace quantspec::cuda
