// A band of a unit: scores from its key piece, then its values times probabilities.
// Scales stay outside the products: they are folded into the queries (per channel) and into the
// probabilities (per token), and codes go to the tensor cores as they are.
#pragma once

#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/attention_stream.cuh"

namespace quantspec::cuda {

// The codes of one tile as an A operand. A code in the low bits of an fp16 is the subnormal
// code * 2^-24, exact. Of 4-bit codes, columns k from 8 on hold 16 times the code: B carries 1/16
// there.
template <class S>
__device__ __forceinline__ void code_fragment(std::uint32_t upper, std::uint32_t lower,
                                              std::uint32_t (&a)[4]) {
  if constexpr (S::kPlanes == 1) {
    a[0] = upper & 0x000f000f;
    a[2] = upper & 0x00f000f0;
    a[1] = upper >> 8 & 0x000f000f;
    a[3] = upper >> 8 & 0x00f000f0;
  } else {
    const std::uint32_t even = select_bits(0xf0f0f0f0, upper << 4, lower);  // nibbles 0, 2, 4, 6
    const std::uint32_t odd = select_bits(0xf0f0f0f0, upper, lower >> 4);   // nibbles 1, 3, 5, 7
    a[0] = even & 0x00ff00ff;
    a[1] = __byte_perm(even, 0, 0x4341);
    a[2] = odd & 0x00ff00ff;
    a[3] = __byte_perm(odd, 0, 0x4341);
  }
}
template <class S>
inline constexpr float kHighColumns = S::kPlanes == 1 ? 0.0625f : 1.0f;

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

__device__ __forceinline__ std::uint32_t bits(__half2 x) {
  return reinterpret_cast<const std::uint32_t&>(x);
}
__device__ __forceinline__ __half2 halves(const std::uint32_t& x) {
  return reinterpret_cast<const __half2&>(x);
}

// Key scales or offsets of channels 2t, 2t + 1 and 2t + 8, 2t + 9 of a tile.
struct ChannelScales {
  __half2 low, high;
};
struct KeyScales {
  ChannelScales scale, offset;
  // By one instruction: matrices of 8 rows that are the same 8 channels, in the order in which
  // fold() multiplies them. `from`: a band's scales.
  template <class S>
  __device__ __forceinline__ static KeyScales load(const std::byte* from, int tile,
                                                   FragmentLane lane) {
    const int matrix = lane.index / 8;
    std::uint32_t x[4];
    load_matrices(from + (1 - matrix % 2) * (2 * S::kHeadDim) + matrix / 2 * 16 + 32 * tile, x);
    return {{halves(x[1]), halves(x[3])}, {halves(x[0]), halves(x[2])}};
  }
};

// Queries times key scales as the operand of codes. bias += queries times key offsets in rows 0 to
// 7, times key scales in the others.
template <class S>
__device__ __forceinline__ Operand fold(const Operand& q, ChannelScales scale, ChannelScales offset,
                                        float (&bias)[4]) {
  mma_f16(bias, {bits(offset.low), bits(scale.low), bits(offset.high), bits(scale.high)}, q);
  __half2 high = scale.high;
  if constexpr (S::kPlanes == 1) high = __hmul2_rn(high, __float2half2_rn(kHighColumns<S>));
  return {
      {bits(__hmul2_rn(halves(q.word[0]), scale.low)), bits(__hmul2_rn(halves(q.word[1]), high))}};
}

// products (tokens x columns) and how they become scores. `queries` as load_query wants them,
// `factors`: [columns].
template <class S>
__device__ __forceinline__ void page_scores(const std::byte* piece, const std::byte* queries,
                                            const float* factors, FragmentLane lane,
                                            float (&products)[S::kScoreTiles][S::kTokenTiles][4],
                                            ScoreMap<S>& map, const CodesAhead<S>& ahead) {
  const std::byte* scales = piece + S::kPlanes * S::kPlaneBytes;
  float bias[S::kScoreTiles][4];  // the same in rows 0 to 7, and in the others
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
    clear(bias[n]);
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) clear(products[n][i]);
  }
  // Unrolled as far as registers allow.
  constexpr int kAtOnce = S::kTeam > 1          ? 4
                          : S::kScoreTiles <= 2 ? S::kChannelTiles
                          : S::kScoreTiles == 3 ? 4
                                                : 1;
#pragma unroll kAtOnce
  for (int tile = 0; tile < S::kChannelTiles; ++tile) {
    const KeyScales key = KeyScales::load<S>(scales, tile, lane);
    const Words<S::kTokenTiles> upper(piece, tile, lane.index);
    const Words<S::kTokenTiles> lower(piece + (S::kPlanes - 1) * S::kPlaneBytes, tile, lane.index);
    ahead.reading(tile);
    Operand b[S::kScoreTiles];
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
      b[n] = fold<S>(load_query(queries, n * S::kChannelTiles + tile, lane), key.scale, key.offset,
                     bias[n]);
    }
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
      std::uint32_t codes[4];
      code_fragment<S>(upper.word[i], lower.word[i], codes);
#pragma unroll
      for (int n = 0; n < S::kScoreTiles; ++n) mma_f16(products[n][i], codes, b[n]);
    }
  }
  ahead.all_read();
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float factor = factors[8 * n + 2 * lane.t + c];
      map.multiplier[n][c] = factor * S::kCodeUnit;
      // What a code of 0 reads as: offset, in a draft offset + 7.5 scale.
      const float zero = S::kPlanes == 1 ? fmaf(7.5f, bias[n][2 + c], bias[n][c]) : bias[n][c];
      map.bias[n][c] = factor * zero;
    }
  }
}

// This lane's value scales or offsets of a band: tokens g and g + 8 of each tile.
template <class S>
struct TokenHalves {
  __half2 tile[S::kTokenTiles];
  __device__ __forceinline__ TokenHalves(const std::byte* from, int group, FragmentLane lane) {
    if constexpr (S::kValueGroups == 1) {
      // By one instruction: a matrix for each tile, rows its 8 first and its 8 last tokens in turn.
      std::uint32_t x[4];
      load_matrices_transposed(from + lane.index / 8 % S::kTokenTiles * 32 + lane.index % 2 * 16,
                               x);
#pragma unroll
      for (int i = 0; i < S::kTokenTiles; ++i) tile[i] = halves(x[i]);
    } else {
      const __half* half = reinterpret_cast<const __half*>(from);
#pragma unroll
      for (int i = 0; i < S::kTokenTiles; ++i) {
        const int token = 16 * i + lane.g;
        tile[i] = __halves2half2(half[token * S::kValueGroups + group],
                                 half[(token + 8) * S::kValueGroups + group]);
      }
    }
  }
};

// The least e such that this lane's value scales of the band are at most 2^e, as far as fp16 goes.
template <class S>
__device__ __forceinline__ float value_exponent(const std::byte* scales, FragmentLane lane) {
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

// Whether the sums take probabilities as the products do, rounded: that halves the error of a
// column which a few tokens dominate. NOTE: not where one token has several value scales, and so
// several roundings.
template <class S>
inline constexpr bool kConsistent = S::kPlanes == 2 && S::kValueGroups == 1;

// Values of other products are read around a centre, code 8 of 4 bits (draft value offset + scale
// (16 u + 7.5)) or 128 of 8, which reads as offset + kCentre scale.
template <class S>
inline constexpr float kCentre = kConsistent<S>    ? 0.0f
                                 : S::kPlanes == 1 ? 135.5f
                                                   : 128.0f;

// sums.zero -= probabilities times the centre of a code. NOTE: codes are not centred before the
// product, which would be four more instructions a tile; their mean is that small that fp32 sums
// bear it.
template <class S>
__device__ __forceinline__ void subtract_centres(
    const std::uint32_t (&b)[S::kColumnTiles][S::kTokenTiles][2], int group, FragmentLane lane,
    WarpSums<S>& sums) {
  std::uint32_t centre[4];
  code_fragment<S>(0x88888888, 0, centre);
  centre[1] = centre[3] = 0;
  if (lane.g != 0) centre[0] = centre[2] = 0;  // row 0 alone, so that one lane has the sum
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) {
    float product[4];
    clear(product);
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) mma_f16(product, centre, b[n][i][0], b[n][i][1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& zero = sums.zero[group][n][c];
      zero = fmaf(-S::kCodeUnit, product[c], zero);
    }
  }
}

// sum += products times `weights`, of tokens g and g + 8.
__device__ __forceinline__ void add_tokens(const float (&p)[4], float2 weights, float (&sum)[2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    sum[c] = fmaf(p[2 + c], weights.y, fmaf(p[c], weights.x, sum[c]));
  }
}

// A token without codes (scale 0) takes no part in the product: its probability is exact.
template <class S>
__device__ __forceinline__ void add_codeless(
    const TokenHalves<S>& scale, const TokenHalves<S>& offset,
    const float (&probabilities)[S::kScoreTiles][S::kTokenTiles][4],
    float (&added)[S::kScoreTiles][2], float (&zero)[S::kScoreTiles][2]) {
  bool all_have = true;
#pragma unroll
  for (const __half2 x : scale.tile) all_have = all_have && __hbne2(x, __float2half2_rn(0.0f));
  if (__all_sync(~0u, all_have)) return;
#pragma unroll
  for (int i = 0; i < S::kTokenTiles; ++i) {
    const float2 s = __half22float2(scale.tile[i]), o = __half22float2(offset.tile[i]);
    const float2 exact = {s.x == 0.0f ? 1.0f : 0.0f, s.y == 0.0f ? 1.0f : 0.0f};
    const float2 offsets = {s.x == 0.0f ? o.x : 0.0f, s.y == 0.0f ? o.y : 0.0f};
#pragma unroll
    for (int n = 0; n < S::kScoreTiles; ++n) {
      add_tokens(probabilities[n][i], exact, added[n]);
      add_tokens(probabilities[n][i], offsets, zero[n]);
    }
  }
}

// sums += values times probabilities, which are products of to_probabilities. `raised`: what
// make_room returned. `added`: the sum of the probabilities of this lane's tokens.
template <class S>
__device__ __forceinline__ void add_page_values(
    const std::byte* piece, bool raised, const Team<S>& team, FragmentLane lane,
    const float (&probabilities)[S::kScoreTiles][S::kTokenTiles][4], WarpSums<S>& sums,
    float (&added)[S::kScoreTiles][2], const CodesAhead<S>& ahead) {
  static_assert(S::kTeam == 1 || S::kValueGroups == 1, "operands are shared once");
#pragma unroll
  for (int n = 0; n < S::kScoreTiles; ++n) clear(added[n]);
  constexpr int kGroupTiles = kValueGroup / 16;
  const std::byte* scales = piece + S::kPlanes * S::kPlaneBytes;
#pragma unroll
  for (int group = 0; group < S::kValueGroups; ++group) {
    const TokenHalves<S> scale(scales, group, lane);
    const TokenHalves<S> offset(scales + S::kValueScaleBytes, group, lane);
    std::uint32_t b[S::kColumnTiles][S::kTokenTiles][2];
    if constexpr (kConsistent<S>) {
      add_codeless<S>(scale, offset, probabilities, added, sums.zero[group]);
    }
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
      const float2 s = __half22float2(scale.tile[i]);
      const float2 o = __half22float2(offset.tile[i]);
      const float2 inverse = {s.x == 0.0f ? 0.0f : reciprocal_approximately(s.x),
                              s.y == 0.0f ? 0.0f : reciprocal_approximately(s.y)};
      // Of what is multiplied with the scale; 0 also where an offset without codes is infinite.
      const float2 offsets = {s.x == 0.0f ? 0.0f : o.x * inverse.x,
                              s.y == 0.0f ? 0.0f : o.y * inverse.y};
      const float scale8 = s.y * kHighColumns<S>;
#pragma unroll
      for (int n = 0; n < S::kScoreTiles; ++n) {
        const float(&p)[4] = probabilities[n][i];
        float scaled[4] = {p[0] * s.x, p[1] * s.x, p[2] * scale8, p[3] * scale8};
        to_operand(scaled, b[n][i]);
        float(&zero)[2] = sums.zero[group][n];
        if constexpr (kConsistent<S>) {
          add_tokens(scaled, inverse, added[n]);
          add_tokens(scaled, offsets, zero);
        } else {
          add_tokens(p, {fmaf(kCentre<S>, s.x, o.x), fmaf(kCentre<S>, s.y, o.y)}, zero);
          if (group > 0) continue;
#pragma unroll
          for (int e = 0; e < 4; ++e) added[n][e % 2] += p[e];
        }
      }
    }
    if constexpr (!kConsistent<S>) subtract_centres<S>(b, group, lane, sums);
    if constexpr (S::kTeam > 1) {
      sums.add(added);
      sums.put_away(team, lane);
    }
    team.take_back(sums.out[S::kColumnTiles - 1], lane);
    team.share(b, raised, lane,
               [&](int n, int c, float factor) { sums.rescale_output(n, c, factor); });
#pragma unroll
    for (int tile = group * kGroupTiles; tile < min((group + 1) * kGroupTiles, S::kOutTiles);
         ++tile) {
      const int channels = team.channel_tile() + tile;
      const Words<S::kTokenTiles> upper(piece, channels, lane.index);
      const Words<S::kTokenTiles> lower(piece + (S::kPlanes - 1) * S::kPlaneBytes, channels,
                                        lane.index);
      ahead.reading(tile);
#pragma unroll
      for (int i = 0; i < S::kTokenTiles; ++i) {
        std::uint32_t codes[4];
        code_fragment<S>(upper.word[i], lower.word[i], codes);
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
          mma_f16(sums.out[n][tile], codes, b[n][i][0], b[n][i][1]);
        }
      }
    }
  }
  ahead.all_read();
  if constexpr (S::kTeam == 1) sums.add(added);  // in the end: it has time
}

}  // namespace quantspec::cuda
