// Decode attention over a band of full-precision tokens, for any number of columns. Included by
// each kernels_*.cc after its simd_*.h.
#pragma once

#include "backend/cpu/softmax-inl.h"

namespace quantspec::cpu {
namespace {

// The register tile: columns, at most; accumulators of a score, whatever the number of columns; and
// blocks of 16 channels of values for N columns.
constexpr int kFullColumns = kRegisters >= 32 ? 6 : kRegisters >= 8 ? 3 : 1;
constexpr int kScoreSums = kRegisters >= 32 ? 4 : 2;
template <int N>
constexpr int kValueBlocks = kRegisters >= 32 ? (N <= 2 ? 8 : 4) : (N == 1 ? 4 : 2);

// Scores of N columns with 16 tokens. ahead: the block to prefetch meanwhile.
template <int N>
QS_INLINE void score_block(const float* q, int head_dim, const std::uint16_t* keys,
                           const std::uint16_t* ahead, F32 (&out)[N]) {
  F32 acc[N][kScoreSums];
  for (auto& column : acc) {
    for (F32& a : column) a = zero_f32();
  }
  for (int c = 0; c < head_dim; c += kScoreSums) {
    for (int j = 0; j < kScoreSums; ++j) {
      const std::uint16_t* tokens = keys + 16 * (c + j);
      if (j % 2 == 0) prefetch(ahead + 16 * (c + j));
      const F32 key = load_f16(tokens);
      for (int n = 0; n < N; ++n) {
        acc[n][j] = fma(set1(q[n * head_dim + c + j]), key, acc[n][j]);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    out[n] = acc[n][0] + acc[n][1];
    if constexpr (kScoreSums == 4) out[n] = out[n] + (acc[n][2] + acc[n][3]);
  }
}

// out = out * rescale + p V for N columns and C blocks of 16 channels, tokens in order. A column
// reads the values of its own tokens only: what lies beyond may be stale.
template <int N, int C>
QS_INLINE void add_values(const AttendFull& a, int first, int channel, const F32 (&rescale)[N],
                          const float (&p)[N][kFullBand], const std::uint16_t* next) {
  F32 acc[N][C];
  float* out = a.columns.partial.out + first * a.columns.head_dim + channel;
  for (int n = 0; n < N; ++n) {
    for (int c = 0; c < C; ++c) {
      acc[n][c] = load(out + n * a.columns.head_dim + 16 * c) * rescale[n];
    }
  }
  const int head_dim = a.columns.head_dim;
  const int common = a.tokens[first];
  for (int begin = 0; begin < common; begin += 16) {
    const std::uint16_t* values = a.value_blocks[begin / 16] + channel;
    const std::uint16_t* ahead =
        begin + 16 < common ? a.value_blocks[begin / 16 + 1] + channel : next;
    const int end = begin + 16 < common ? begin + 16 : common;
    for (int t = begin; t < end; ++t, values += head_dim, ahead += head_dim) {
      for (int c = 0; c < C; ++c) {
        if (c % 2 == 0) prefetch(ahead + 16 * c);
        const F32 value = load_f16(values + 16 * c);
        for (int n = 0; n < N; ++n) acc[n][c] = fma(set1(p[n][t]), value, acc[n][c]);
      }
    }
  }
  for (int n = 1; n < N; ++n) {
    for (int t = common; t < a.tokens[first + n]; ++t) {
      const std::uint16_t* values = a.value_blocks[t / 16] + (t % 16) * head_dim + channel;
      for (int c = 0; c < C; ++c) {
        acc[n][c] = fma(set1(p[n][t]), load_f16(values + 16 * c), acc[n][c]);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int c = 0; c < C; ++c) store(out + n * a.columns.head_dim + 16 * c, acc[n][c]);
  }
}

template <int N>
QS_INLINE void attend_full_tile(const AttendFull& a, int first) {
  alignas(64) static constexpr float kIota[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};
  float scores[N][kFullBand];
  F32 rescale[N], block[N];
  const int* tokens = a.tokens + first;
  for (int t = 0; t < tokens[N - 1]; t += 16) {
    score_block<N>(a.columns.q + first * a.columns.head_dim, a.columns.head_dim,
                   a.key_blocks[t / 16],
                   t + 16 < tokens[N - 1] ? a.key_blocks[t / 16 + 1] : a.value_blocks[0], block);
    for (int n = 0; n < N; ++n) {
      const F32 left = set1(static_cast<float>(tokens[n] - t));
      store(scores[n] + t, select_less(load(kIota), left, block[n], set1(-__builtin_inff())));
    }
  }
  for (int n = 0; n < N; ++n) {
    update_softmax(scores[n], (tokens[n] + 15) / 16 * 16, a.columns.partial.max + first + n,
                   a.columns.partial.sum + first + n, &rescale[n]);
  }
  const std::uint16_t* after = a.next != nullptr ? a.next : a.key_blocks[0];
  int channel = 0;
  const auto add_channels = [&]<int C>() {
    for (; channel + 16 * C <= a.columns.head_dim; channel += 16 * C) {
      const int below = channel + 16 * C;
      add_values<N, C>(a, first, channel, rescale, scores,
                       below < a.columns.head_dim ? a.value_blocks[0] + below : after);
    }
  };
  constexpr int kBlocks = kValueBlocks<N>;
  add_channels.template operator()<kBlocks>();
  if constexpr (kBlocks > 4) add_channels.template operator()<4>();
  add_channels.template operator()<1>();
}

template <int N>
void attend_full_tile_of(int count, const AttendFull& a, int first) {
  if constexpr (N > 1) {
    if (count < N) return attend_full_tile_of<N - 1>(count, a, first);
  }
  attend_full_tile<N>(a, first);
}

// Columns in tiles of about the same size.
void attend_full(const AttendFull& a) {
  int first = 0;
  while (first < a.columns.num_columns && a.tokens[first] == 0) ++first;
  int tiles = (a.columns.num_columns - first + kFullColumns - 1) / kFullColumns;
  for (; tiles > 0; --tiles) {
    const int count = (a.columns.num_columns - first + tiles - 1) / tiles;
    attend_full_tile_of<kFullColumns>(count, a, first);
    first += count;
  }
}

}  // namespace
}  // namespace quantspec::cpu
