// A chunk of a unit: scores from its key piece, then its values times probabilities.
// Scales stay outside the products: they are folded into the queries (per channel) and into the
// probabilities (per token), and codes go to the tensor cores as they are.
#pragma once

#include "backend/cuda/attention_softmax.cuh"

namespace quantspec::cuda {

// The 4-bit codes of one tile as an A operand. A code in the low bits of an fp16 is the subnormal
// code * 2^-24, exact. Columns k from 8 on hold 16 times the code: B carries 1/16 there.
__device__ __forceinline__ void code_fragment(std::uint32_t word, std::uint32_t (&a)[4]) {
  a[0] = word & 0x000f000f;
  a[2] = word & 0x00f000f0;
  a[1] = word >> 8 & 0x000f000f;
  a[3] = word >> 8 & 0x00f000f0;
}
template <class S>
inline constexpr float kHighColumns = S::kPlanes == 1 ? 0.0625f : 1.0f;

// The codes of both planes as fp16 code - 128.
__device__ __forceinline__ void centred_fragment(std::uint32_t upper, std::uint32_t lower,
                                                 std::uint32_t (&a)[4]) {
  both_fragment(upper, lower, a);
  const __half2 centre = __float2half2_rn(kCodeBias + 128.0f);
#pragma unroll
  for (std::uint32_t& x : a) {
    const __half2 centred = __hsub2(reinterpret_cast<__half2&>(x), centre);
    x = reinterpret_cast<const std::uint32_t&>(centred);
  }
}

// A lane's words of the token tiles of one channel tile, of one plane.
template <int kTiles>
struct Words {
  std::uint32_t word[kTiles];
  __device__ __forceinline__ Words(const std::byte* plane, int channel_tile, int lane) {
    const std::byte* at = plane + (channel_tile * 32 + lane) * 4 * kTiles;
    if constexpr (kTiles == 4) {
      const uint4 x = *reinterpret_cast<const uint4*>(at);
      word[0] = x.x, word[1] = x.y, word[2] = x.z, word[3] = x.w;
    } else {
      const uint2 x = *reinterpret_cast<const uint2*>(at);
      word[0] = x.x, word[1] = x.y;
    }
  }
};

// Key scales or offsets of channels 2t, 2t + 1 and 2t + 8, 2t + 9 of a tile.
struct ChannelScales {
  __half2 low, high;
};
__device__ __forceinline__ ChannelScales load_channels(const std::byte* from) {
  return {*reinterpret_cast<const __half2*>(from), *reinterpret_cast<const __half2*>(from + 16)};
}
__device__ __forceinline__ std::uint32_t bits(__half2 x) {
  return reinterpret_cast<const std::uint32_t&>(x);
}

// Queries times key scales as the operand of codes, and bias += queries times what a code of 0
// reads as, offset + 7.5 scale. In fp16, as a draft may.
__device__ __forceinline__ QueryOperand fold_in_half(float4 q, ChannelScales scale,
                                                     ChannelScales offset, float (&bias)[4]) {
  const __half2 low = __floats2half2_rn(q.x, q.y), high = __floats2half2_rn(q.z, q.w);
  const __half2 middle = __float2half2_rn(7.5f);
  const std::uint32_t zero_low = bits(__hfma2(middle, scale.low, offset.low));
  const std::uint32_t zero_high = bits(__hfma2(middle, scale.high, offset.high));
  const std::uint32_t zeros[4] = {zero_low, zero_low, zero_high, zero_high};  // every row
  mma_f16(bias, zeros, bits(low), bits(high));
  const __half2 sixteenth = __float2half2_rn(0.0625f);  // code_fragment
  return {{bits(__hmul2(low, scale.low)), bits(__hmul2(high, __hmul2(scale.high, sixteenth)))},
          {0, 0}};
}

// The same in fp32, of codes around 128: zero += queries times (offset + 128 scale).
template <class S>
__device__ __forceinline__ QueryOperand fold_exactly(float4 q, ChannelScales scale,
                                                     ChannelScales offset, float& zero) {
  const float2 s0 = __half22float2(scale.low), s8 = __half22float2(scale.high);
  const float2 o0 = __half22float2(offset.low), o8 = __half22float2(offset.high);
  zero = fmaf(q.x, fmaf(S::kCentre, s0.x, o0.x), zero);
  zero = fmaf(q.y, fmaf(S::kCentre, s0.y, o0.y), zero);
  zero = fmaf(q.z, fmaf(S::kCentre, s8.x, o8.x), zero);
  zero = fmaf(q.w, fmaf(S::kCentre, s8.y, o8.y), zero);
  return query_operand<S>({q.x * s0.x, q.y * s0.y, q.z * s8.x, q.w * s8.y});
}

// products (tokens x columns) and how they become scores. `queries`: [column tile, channel tile,
// lane] B operands in fp32 (channels 2t, 2t + 1, 2t + 8, 2t + 9), `factors`: [columns].
template <class S>
__device__ __forceinline__ void page_scores(const std::byte* piece, const float4* queries,
                                            const float* factors, Lane lane,
                                            float (&products)[S::kColumnTiles][S::kTokenTiles][4],
                                            ScoreMap<S>& map) {
  const std::byte* scales = piece + S::kPlanes * S::kPlaneBytes;
  float bias[S::kColumnTiles][4];  // of kUpper: the same in every row
  float zero[S::kColumnTiles];     // of kBoth: of column g, over this lane's channels
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
    clear(bias[n]);
    zero[n] = 0.0f;
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) clear(products[n][i]);
  }
#pragma unroll(S::kColumnTiles <= 2 ? S::kChannelTiles : 2)
  for (int tile = 0; tile < S::kChannelTiles; ++tile) {
    const std::byte* at = scales + 32 * tile + 4 * lane.t;
    const ChannelScales scale = load_channels(at), offset = load_channels(at + 2 * S::kHeadDim);
    const Words<S::kTokenTiles> upper(piece, tile, lane.index);
    const Words<S::kTokenTiles> lower(piece + (S::kPlanes - 1) * S::kPlaneBytes, tile, lane.index);
    QueryOperand b[S::kColumnTiles];
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
      const float4 q = queries[(n * S::kChannelTiles + tile) * 32 + lane.index];
      if constexpr (S::kPlanes == 1) {
        b[n] = fold_in_half(q, scale, offset, bias[n]);
      } else {
        b[n] = fold_exactly<S>(q, scale, offset, zero[n]);
      }
    }
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
      std::uint32_t codes[4];
      if constexpr (S::kPlanes == 1) {
        code_fragment(upper.word[i], codes);
      } else {
        centred_fragment(upper.word[i], lower.word[i], codes);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) add_query_product<S>(products[n][i], codes, b[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
    if constexpr (S::kPlanes == 2) {
      zero[n] += __shfl_xor_sync(~0u, zero[n], 1);
      zero[n] += __shfl_xor_sync(~0u, zero[n], 2);
#pragma unroll
      for (int c = 0; c < 2; ++c) bias[n][c] = __shfl_sync(~0u, zero[n], 4 * (2 * lane.t + c));
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float factor = factors[8 * n + 2 * lane.t + c];
      map.multiplier[n][c] = factor * S::kCodeUnit;
      map.bias[n][c] = factor * bias[n][c];
    }
  }
}

// This lane's value scales or offsets of a chunk: tokens g and g + 8 of each tile.
template <class S>
struct TokenHalves {
  __half2 tile[S::kTokenTiles];
  __device__ __forceinline__ TokenHalves(const std::byte* from, int group, Lane lane) {
    const __half* half = reinterpret_cast<const __half*>(from);
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
      const int token = 16 * i + lane.g;
      tile[i] = __halves2half2(half[token * S::kValueGroups + group],
                               half[(token + 8) * S::kValueGroups + group]);
    }
  }
};

// The least e such that this lane's value scales of the chunk are at most 2^e, as far as fp16 goes.
template <class S>
__device__ __forceinline__ float value_exponent(const std::byte* scales, Lane lane) {
  __half2 most = __float2half2_rn(0x1p-24f);
#pragma unroll
  for (int group = 0; group < S::kValueGroups; ++group) {
    const TokenHalves<S> scale(scales, group, lane);
#pragma unroll
    for (const __half2 x : scale.tile) most = __hmax2(most, x);
  }
  const float x = fmaxf(__low2float(most), __high2float(most));
  return static_cast<float>((__float_as_int(x) >> 23) - 126);
}

// sums.zero -= probabilities times the centre of a 4-bit code. NOTE: 4-bit codes are not centred
// before the product, which would be four more instructions a tile; their mean is that small that
// fp32 sums bear it. 8-bit codes are.
template <class S>
__device__ __forceinline__ void subtract_centres(
    const std::uint32_t (&b)[S::kColumnTiles][S::kTokenTiles][2], int group, Lane lane,
    WarpSums<S>& sums) {
  std::uint32_t centre[4];
  code_fragment(0x88888888, centre);
  centre[1] = centre[3] = 0;
  if (lane.g != 0) centre[0] = centre[2] = 0;  // row 0 alone, so that one lane has the sum
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
    float product[4];
    clear(product);
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) mma_f16(product, centre, b[n][i][0], b[n][i][1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& zero = sums.zero[n][group][c];
      zero = fmaf(-S::kCodeUnit, product[c], zero);
    }
  }
}

// Whether the sums take probabilities as the products do, rounded: that halves the error of a
// column which a few tokens dominate. NOTE: not where one token has several value scales, and so
// several roundings.
template <class S>
inline constexpr bool kConsistent = S::kPlanes == 2 && S::kValueGroups == 1;

__device__ __forceinline__ void add_tokens(const float (&p)[4], float zero0, float zero8,
                                           float (&sum)[2], float (&zero)[2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    sum[c] += p[c];
    sum[c] += p[2 + c];
    zero[c] = fmaf(p[2 + c], zero8, fmaf(p[c], zero0, zero[c]));
  }
}

// sums += values times probabilities, which are products of to_probabilities. `added`: the sum of
// those of this lane's tokens.
template <class S>
__device__ __forceinline__ void add_page_values(
    const std::byte* piece, Lane lane,
    const float (&probabilities)[S::kColumnTiles][S::kTokenTiles][4], WarpSums<S>& sums,
    float (&added)[S::kColumnTiles][2]) {
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) clear(added[n]);
  constexpr int kGroupTiles = kValueGroup / 16;
  const std::byte* scales = piece + S::kPlanes * S::kPlaneBytes;
#pragma unroll
  for (int group = 0; group < S::kValueGroups; ++group) {
    const TokenHalves<S> scale(scales, group, lane);
    const TokenHalves<S> offset(scales + S::kValueScaleBytes, group, lane);
    std::uint32_t b[S::kColumnTiles][S::kTokenTiles][2];
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
      const float2 s = __half22float2(scale.tile[i]);
      const float2 o = __half22float2(offset.tile[i]);
      // A token without codes (scale 0) takes no part in the product: its probability is exact.
      const float exact0 = s.x == 0.0f ? 1.0f : 0.0f, exact8 = s.y == 0.0f ? 1.0f : 0.0f;
      const float inverse0 = s.x == 0.0f ? 0.0f : __fdividef(1.0f, s.x);
      const float inverse8 = s.y == 0.0f ? 0.0f : __fdividef(1.0f, s.y);
      const float zero0 = fmaf(S::kCentre, s.x, o.x), zero8 = fmaf(S::kCentre, s.y, o.y);
      const float scale8 = s.y * kHighColumns<S>;
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        const float(&p)[4] = probabilities[n][i];
        float scaled[4] = {p[0] * s.x, p[1] * s.x, p[2] * scale8, p[3] * scale8};
        to_operand(scaled, b[n][i]);
        if constexpr (kConsistent<S>) {
          const float read[4] = {
              fmaf(p[0], exact0, scaled[0] * inverse0), fmaf(p[1], exact0, scaled[1] * inverse0),
              fmaf(p[2], exact8, scaled[2] * inverse8), fmaf(p[3], exact8, scaled[3] * inverse8)};
          add_tokens(read, zero0, zero8, added[n], sums.zero[n][group]);
        } else if (group == 0) {
          add_tokens(p, zero0, zero8, added[n], sums.zero[n][group]);
        } else {
          float again[2] = {0.0f, 0.0f};
          add_tokens(p, zero0, zero8, again, sums.zero[n][group]);
        }
      }
    }
    if constexpr (S::kPlanes == 1) subtract_centres<S>(b, group, lane, sums);
#pragma unroll
    for (int tile = group * kGroupTiles; tile < min((group + 1) * kGroupTiles, S::kChannelTiles);
         ++tile) {
      const Words<S::kTokenTiles> upper(piece, tile, lane.index);
      const Words<S::kTokenTiles> lower(piece + (S::kPlanes - 1) * S::kPlaneBytes, tile,
                                        lane.index);
#pragma unroll
      for (int i = 0; i < S::kTokenTiles; ++i) {
        std::uint32_t codes[4];
        if constexpr (S::kPlanes == 1) {
          code_fragment(upper.word[i], codes);
        } else {
          centred_fragment(upper.word[i], lower.word[i], codes);
        }
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
          mma_f16(sums.out[n][tile], codes, b[n][i][0], b[n][i][1]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) sums.sum[n][c] += added[n][c];
  }
}

}  // namespace quantspec::cuda
