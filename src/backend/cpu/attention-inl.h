// Decode attention over one page, or over a chunk of full-precision tokens, for any number of
// columns; and the merge of partial softmaxes. Included by each kernels_*.cc after its simd_*.h.
//
// Folding (section 2 of docs/design.md). For a column q and one page, with code b = c + z, z a
// fixed centre, the scales never enter the inner loop:
//
//     score[t] = sum_ch (q scale)[ch] c[t, ch]  +  sum_ch (q (offset + z scale))[ch]
//     out[ch]  = sum_t (p scale)[t] c[t, ch]    +  sum_t (p (offset + z scale))[t]
//
// The second sums are fp32. For the first, q scale and p scale are rounded to integers relative to
// their greatest magnitude in the page: 15 bits, as 128 high + low, when both planes are read;
// 8 bits when the upper plane is read. Centring the codes halves what that rounding costs.
#pragma once

#include "backend/cpu/kernels_attention.h"
#include "backend/cpu/pages-inl.h"

namespace quantspec::cpu {
namespace {

constexpr int kPageColumns = kRegisters >= 32 ? 8 : kRegisters >= 8 ? 2 : 1;  // of a register tile
constexpr int kFullColumns = kRegisters >= 32 ? 4 : 1;
constexpr int kMaxTerms = kMaxPageSize > kMaxHeadDim ? kMaxPageSize : kMaxHeadDim;

// Cache lines fetched ahead before each phase that reads no codes: what a core can have in flight.
constexpr int kPrologueLines = 16;

// --- small parts ---------------------------------------------------------------------------------

// Walks over the next unit, a cache line a step, in the order in which it will be read; every phase
// of a page takes steps, so that memory never rests.
struct Prefetcher {
  struct Range {
    const std::uint8_t* line = nullptr;
    const std::uint8_t* end = nullptr;
  };
  Range now, then, last;

  QS_INLINE void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  QS_INLINE void step() {
    if (now.line >= now.end) {
      now = then;
      then = last;
      last = {};
      if (now.line == nullptr) return;
    }
    prefetch_to_l2(now.line);  // NOTE: 10% faster than to L1, which two pages do not fit in
    now.line += 64;
  }
};

QS_INLINE Prefetcher prefetch_unit(const PageUnit& unit, const PageShape& shape) {
  if (unit.upper == nullptr) return {};
  const UnitParts parts = unit_parts(shape);
  const std::uint8_t* scales = unit.upper + 2 * parts.plane_bytes;
  Prefetcher::Range lower;
  if (unit.lower != nullptr) lower = {unit.lower, unit.lower + 2 * parts.plane_bytes};
  return {{scales, unit.upper + parts.upper_bytes}, {unit.upper, scales}, lower};
}

// A vector over the terms of a dot product, rounded to integers: x ~ step * (128 high + low), or
// step * high where only the upper plane is read.
struct IntegerTerms {
  std::int8_t high[kMaxTerms];
  std::int8_t low[kMaxTerms];
  std::int32_t bias;  // centre times the sum of the integers
  float step;         // times 16 where codes are upper nibbles
};

QS_INLINE std::int32_t four_terms(const std::int8_t* terms, int quad) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, terms + 4 * quad, 4);
  return bytes;
}

// The codes that a pass reads, and the fp32 part of their centre: code value = c * kUnit + kCentre.
template <bool kBoth>
struct CodesRead {
  static constexpr int kIntegerCentre = kBoth ? 128 : 8;       // subtracted from b, or from u
  static constexpr float kUnit = kBoth ? 1.0f : 16.0f;         // of an integer code
  static constexpr float kCentre = kBoth ? 128.0f : 135.5f;    // 16 * 8 + 7.5
  static constexpr float kLevels = kBoth ? 16319.0f : 127.0f;  // 127 * 128 + 63
};

// `most`: lanes whose greatest magnitude is that of x. A NaN or an infinity in x shows in step.
template <bool kBoth>
QS_INLINE void round_terms(const float* x, int count, F32 most_lanes, IntegerTerms& out) {
  using C = CodesRead<kBoth>;
  const float most = reduce_max_magnitude(most_lanes);
  const F32 inverse = set1(most > 1e-30f ? C::kLevels / most : 0.0f);
  I32 sum = zero_i32();
  for (int i = 0; i < count; i += 16) {
    const I32 value = round_i32(min(load(x + i) * inverse, set1(C::kLevels)));  // NaN: any integer
    sum = sum + value;
    if constexpr (kBoth) {
      const I32 high = shift_right<7>(value + set1(std::int32_t{64}));
      store_s8(out.high + i, high);
      store_s8(out.low + i, value - shift_left<7>(high));
    } else {
      store_s8(out.high + i, value);
    }
  }
  out.bias = C::kIntegerCentre * static_cast<std::int32_t>(reduce_add(to_f32(sum)));
  out.step = most * (C::kUnit / C::kLevels);
}

// --- a page --------------------------------------------------------------------------------------

// The sums, over the terms of a block of 16 outputs, of one column's integers times the codes.
// `Codes` is what columns share of a tile. Three ways to the same integers; kBytes is kByteDot.
template <bool kBoth, bool kBytes>
struct Dots;

// The upper plane by bytes. NOTE: high nibbles stay where they are, 16 times too large, until the
// end: a shift would compete with the dot products for their port (10% of the loop).
template <>
struct Dots<false, true> {
  struct Codes {
    QS_INLINE Codes(const std::uint8_t* upper, const std::uint8_t*) {
      const U8x64 u = load_u8(upper);
      first = low_nibbles(u);
      second = high_nibbles_in_place(u);
    }
    U8x64 first, second;  // terms 0..3 and 4..7 of the tile
  };
  QS_INLINE void add(const Codes& codes, const IntegerTerms& x, int tile) {
    first = dot(first, codes.first, four_terms(x.high, 2 * tile));
    second = dot(second, codes.second, four_terms(x.high, 2 * tile + 1));
  }
  QS_INLINE I32 total() const { return first + shift_right<4>(second); }
  I32 first = zero_i32(), second = zero_i32();
};

// The upper plane by nibbles.
template <>
struct Dots<false, false> {
  struct Codes {
    QS_INLINE Codes(const std::uint8_t* upper, const std::uint8_t*) {
      const U8x64 u = load_u8(upper);
      first = low_nibbles(u);
      second = high_nibbles(u);
    }
    U8x64 first, second;
  };
  QS_INLINE void add(const Codes& codes, const IntegerTerms& x, int tile) {
    sum = dot_pair(sum, codes.first, four_terms(x.high, 2 * tile), codes.second,
                   four_terms(x.high, 2 * tile + 1));
  }
  QS_INLINE I32 total() const { return sum; }
  I32 sum = zero_i32();
};

// Both planes, merged to bytes.
template <>
struct Dots<true, true> {
  struct Codes {
    QS_INLINE Codes(const std::uint8_t* upper, const std::uint8_t* lower) {
      const U8x64 u = load_u8(upper), l = load_u8(lower);
      first = merge_low(u, l);
      second = merge_high(u, l);
    }
    U8x64 first, second;
  };
  QS_INLINE void add(const Codes& codes, const IntegerTerms& x, int tile) {
    high = dot(high, codes.first, four_terms(x.high, 2 * tile));
    low = dot(low, codes.first, four_terms(x.low, 2 * tile));
    high = dot(high, codes.second, four_terms(x.high, 2 * tile + 1));
    low = dot(low, codes.second, four_terms(x.low, 2 * tile + 1));
  }
  QS_INLINE I32 total() const { return shift_left<7>(high) + low; }
  I32 high = zero_i32(), low = zero_i32();
};

// Both planes, kept apart: 16 dot(upper) + dot(lower).
template <>
struct Dots<true, false> {
  using Nibbles = Dots<false, false>;
  struct Codes {
    QS_INLINE Codes(const std::uint8_t* upper, const std::uint8_t* lower)
        : upper(upper, nullptr), lower(lower, nullptr) {}
    Nibbles::Codes upper, lower;
  };
  QS_INLINE void add(const Codes& codes, const IntegerTerms& x, int tile) {
    const std::int32_t high[2] = {four_terms(x.high, 2 * tile), four_terms(x.high, 2 * tile + 1)};
    const std::int32_t low[2] = {four_terms(x.low, 2 * tile), four_terms(x.low, 2 * tile + 1)};
    upper_high = dot_pair(upper_high, codes.upper.first, high[0], codes.upper.second, high[1]);
    upper_low = dot_pair(upper_low, codes.upper.first, low[0], codes.upper.second, low[1]);
    lower_high = dot_pair(lower_high, codes.lower.first, high[0], codes.lower.second, high[1]);
    lower_low = dot_pair(lower_low, codes.lower.first, low[0], codes.lower.second, low[1]);
  }
  QS_INLINE I32 total() const {
    return shift_left<7>(shift_left<4>(upper_high) + lower_high) +
           (shift_left<4>(upper_low) + lower_low);
  }
  I32 upper_high = zero_i32(), upper_low = zero_i32();
  I32 lower_high = zero_i32(), lower_low = zero_i32();
};

// Dots of N columns with one block of 16 outputs.
template <int N, bool kBoth>
QS_INLINE void dot_block(const std::uint8_t* upper, const std::uint8_t* lower, int tiles,
                         const IntegerTerms (&terms)[N], Prefetcher& prefetcher, I32 (&out)[N]) {
  using BlockDots = Dots<kBoth, kByteDot>;
  Prefetcher ahead = prefetcher;  // a copy stays in registers
  BlockDots dots[N];
  for (int t = 0; t < tiles; ++t) {
    ahead.step();
    if constexpr (kBoth) ahead.step();
    const typename BlockDots::Codes codes(upper + 64 * t, lower + 64 * t);
    for (int n = 0; n < N; ++n) dots[n].add(codes, terms[n], t);
  }
  for (int n = 0; n < N; ++n) out[n] = dots[n].total();
  prefetcher = ahead;
}

// The two sums of the formula above for x = q or p over a page's channels or tokens: rounds x scale
// to integers, returns the sum of x (offset + centre scale).
template <bool kBoth>
QS_INLINE float fold(const float* x, const std::uint16_t* scales, const std::uint16_t* offsets,
                     int count, IntegerTerms& out) {
  float scaled[kMaxTerms];
  F32 most = zero_f32(), base = zero_f32();
  for (int i = 0; i < count; i += 16) {
    const F32 value = load(x + i), scale = load_f16(scales + i);
    const F32 product = value * scale;
    store(scaled + i, product);
    most = max_magnitude(most, product);
    base = fma(value, fma(scale, set1(CodesRead<kBoth>::kCentre), load_f16(offsets + i)), base);
  }
  round_terms<kBoth>(scaled, count, most, out);
  return reduce_add(base);
}

// Turns `count` (a multiple of 16) scores into probabilities relative to the column's new maximum;
// returns the factor, in every lane, that what it had before must be multiplied with.
QS_INLINE F32 update_softmax(float* scores, int count, float* column_max, float* column_sum) {
  F32 most = set1(-__builtin_inff());
  for (int t = 0; t < count; t += 16) most = max(most, load(scores + t));
  const float new_max = max(*column_max, reduce_max(most));
  const F32 rescale = exp(set1(*column_max) - set1(new_max));
  F32 sum = zero_f32();
  for (int t = 0; t < count; t += 16) {
    const F32 p = exp(load(scores + t) - set1(new_max));
    store(scores + t, p);
    sum = sum + p;
  }
  *column_max = new_max;
  store_n(column_sum, fma(set1(*column_sum), rescale, set1(reduce_add(sum))), 1);
  return rescale;
}

// The scales (or offsets) of one value group, one per token.
QS_INLINE const std::uint16_t* value_group(const std::uint16_t* all, const PageShape& shape, int g,
                                           std::uint16_t (&buffer)[kMaxPageSize]) {
  if (shape.value_groups == 1) return all;
  for (int t = 0; t < shape.page_size; ++t) buffer[t] = all[t * shape.value_groups + g];
  return buffer;
}

template <int N, bool kBoth>
QS_INLINE void attend_tile(const AttendPage& a, int first, Prefetcher& ahead) {
  const PageShape& shape = a.shape;
  const UnitParts parts = unit_parts(shape);
  const auto scales = unit_scale_arrays(shape, a.page.upper);
  const std::uint8_t* lower = kBoth ? a.page.lower : a.page.upper;  // unread in the latter case
  IntegerTerms terms[N];
  float scores[N][kMaxPageSize];
  float base[N];
  F32 rescale[N];
  I32 dots[N];

  ahead.steps(kPrologueLines);
  for (int n = 0; n < N; ++n) {
    base[n] = fold<kBoth>(a.columns.q + (first + n) * shape.head_dim, scales.key_scale,
                          scales.key_offset, shape.head_dim, terms[n]);
  }
  const int key_block_bytes = 16 * shape.head_dim / 2;
  for (int b = 0; b < shape.page_size / 16; ++b) {
    dot_block<N, kBoth>(a.page.upper + b * key_block_bytes, lower + b * key_block_bytes,
                        shape.head_dim / 8, terms, ahead, dots);
    for (int n = 0; n < N; ++n) {
      const F32 centred = to_f32(dots[n] - set1(terms[n].bias));
      store(scores[n] + 16 * b, fma(centred, set1(terms[n].step), set1(base[n])));
    }
  }
  ahead.steps(kPrologueLines);
  for (int n = 0; n < N; ++n) {
    rescale[n] = update_softmax(scores[n], shape.page_size, a.columns.partial.max + first + n,
                                a.columns.partial.sum + first + n);
  }

  const int value_block_bytes = 16 * shape.page_size / 2;
  for (int g = 0; g < shape.value_groups; ++g) {
    std::uint16_t scale_buffer[kMaxPageSize], offset_buffer[kMaxPageSize];
    const std::uint16_t* scale = value_group(scales.value_scale, shape, g, scale_buffer);
    const std::uint16_t* offset = value_group(scales.value_offset, shape, g, offset_buffer);
    ahead.steps(kPrologueLines);
    for (int n = 0; n < N; ++n) {
      base[n] = fold<kBoth>(scores[n], scale, offset, shape.page_size, terms[n]);
    }
    const int begin = kValueGroup * g;
    const int end = begin + kValueGroup < shape.head_dim ? begin + kValueGroup : shape.head_dim;
    for (int c = begin; c < end; c += 16) {
      const std::ptrdiff_t block = parts.plane_bytes + c / 16 * value_block_bytes;
      dot_block<N, kBoth>(a.page.upper + block, lower + block, shape.page_size / 8, terms, ahead,
                          dots);
      for (int n = 0; n < N; ++n) {
        float* out = a.columns.partial.out + (first + n) * shape.head_dim + c;
        const F32 centred = to_f32(dots[n] - set1(terms[n].bias));
        const F32 sum = fma(centred, set1(terms[n].step), set1(base[n]));
        store(out, fma(load(out), rescale[n], sum));
      }
    }
  }
}

template <int N, bool kBoth>
void attend_tile_of(int count, const AttendPage& a, int first, Prefetcher& ahead) {
  if constexpr (N > 1) {
    if (count < N) return attend_tile_of<N - 1, kBoth>(count, a, first, ahead);
  }
  attend_tile<N, kBoth>(a, first, ahead);
}

template <bool kBoth>
void attend_page_columns(const AttendPage& a) {
  Prefetcher ahead = prefetch_unit(a.next, a.shape);
  for (int first = 0; first < a.columns.num_columns; first += kPageColumns) {
    attend_tile_of<kPageColumns, kBoth>(a.columns.num_columns - first, a, first, ahead);
  }
}

void attend_page(const AttendPage& a) {
  return a.page.lower == nullptr ? attend_page_columns<false>(a) : attend_page_columns<true>(a);
}

// --- full precision ------------------------------------------------------------------------------

// Scores of N columns with 16 tokens; four accumulators each, whatever N.
template <int N>
QS_INLINE void score_block(const float* q, int head_dim, const std::uint16_t* keys, F32 (&out)[N]) {
  F32 acc[N][4];
  for (auto& column : acc) {
    for (F32& a : column) a = zero_f32();
  }
  for (int c = 0; c < head_dim; c += 4) {
    for (int j = 0; j < 4; ++j) {
      const std::uint16_t* tokens = keys + 16 * (c + j);
      if (j % 2 == 0) prefetch(tokens + 16 * head_dim);  // the next block, usually
      const F32 key = load_f16(tokens);
      for (int n = 0; n < N; ++n) {
        acc[n][j] = fma(set1(q[n * head_dim + c + j]), key, acc[n][j]);
      }
    }
  }
  for (int n = 0; n < N; ++n) out[n] = (acc[n][0] + acc[n][1]) + (acc[n][2] + acc[n][3]);
}

// out = out * rescale + p V for N columns and C blocks of 16 channels, tokens in order. A column
// reads the values of its own tokens only: what lies beyond may be stale.
template <int N, int C>
QS_INLINE void add_values(const AttendFull& a, int first, int channel, const F32 (&rescale)[N],
                          const float (&p)[N][kFullChunk]) {
  F32 acc[N][C];
  float* out = a.columns.partial.out + first * a.columns.head_dim + channel;
  for (int n = 0; n < N; ++n) {
    for (int c = 0; c < C; ++c) {
      acc[n][c] = load(out + n * a.columns.head_dim + 16 * c) * rescale[n];
    }
  }
  const auto row = [&](int t) {
    return a.value_blocks[t / 16] + (t % 16) * a.columns.head_dim + channel;
  };
  const int common = a.tokens[first];
  for (int t = 0; t < common; ++t) {
    const std::uint16_t* values = row(t);
    for (int c = 0; c < C; ++c) {
      if (c % 2 == 0) prefetch(values + 16 * c + 16 * a.columns.head_dim);
      const F32 value = load_f16(values + 16 * c);
      for (int n = 0; n < N; ++n) acc[n][c] = fma(set1(p[n][t]), value, acc[n][c]);
    }
  }
  for (int n = 1; n < N; ++n) {
    for (int t = common; t < a.tokens[first + n]; ++t) {
      const std::uint16_t* values = row(t);
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
  float scores[N][kFullChunk];
  F32 rescale[N], block[N];
  const int* tokens = a.tokens + first;
  for (int t = 0; t < tokens[N - 1]; t += 16) {
    score_block<N>(a.columns.q + first * a.columns.head_dim, a.columns.head_dim,
                   a.key_blocks[t / 16], block);
    for (int n = 0; n < N; ++n) {
      const F32 left = set1(static_cast<float>(tokens[n] - t));
      store(scores[n] + t, select_less(load(kIota), left, block[n], set1(-__builtin_inff())));
    }
  }
  for (int n = 0; n < N; ++n) {
    rescale[n] =
        update_softmax(scores[n], (tokens[n] + 15) / 16 * 16, a.columns.partial.max + first + n,
                       a.columns.partial.sum + first + n);
  }
  constexpr int kBlocks = kRegisters >= 32 && N <= 2 ? 8 : 4;
  int channel = 0;
  for (; channel + 16 * kBlocks <= a.columns.head_dim; channel += 16 * kBlocks) {
    add_values<N, kBlocks>(a, first, channel, rescale, scores);
  }
  for (; channel < a.columns.head_dim; channel += 16) {
    add_values<N, 1>(a, first, channel, rescale, scores);
  }
}

template <int N>
void attend_full_tile_of(int count, const AttendFull& a, int first) {
  if constexpr (N > 1) {
    if (count < N) return attend_full_tile_of<N - 1>(count, a, first);
  }
  attend_full_tile<N>(a, first);
}

void attend_full(const AttendFull& a) {
  int first = 0;
  while (first < a.columns.num_columns && a.tokens[first] == 0) ++first;
  for (; first < a.columns.num_columns; first += kFullColumns) {
    attend_full_tile_of<kFullColumns>(a.columns.num_columns - first, a, first);
  }
}

// --- merge ---------------------------------------------------------------------------------------

void merge_partials(const Merge& m) {
  float most = m.max[0];
  for (int i = 1; i < m.num_partials; ++i) most = max(most, m.max[i * m.stride]);
  F32 total = zero_f32();
  F32 acc[kMaxHeadDim / 16];
  for (F32& a : acc) a = zero_f32();
  for (int i = 0; i < m.num_partials; ++i) {
    const F32 weight = exp(set1(m.max[i * m.stride]) - set1(most));
    total = fma(weight, set1(m.sum[i * m.stride]), total);
    for (int c = 0; c < m.head_dim; c += 16) {
      acc[c / 16] = fma(weight, load(m.out + i * m.stride + c), acc[c / 16]);
    }
  }
  for (int c = 0; c < m.head_dim; c += 16) store(m.result + c, acc[c / 16] / total);
}

constexpr AttentionKernels attention_kernels() {
  return {attend_page, attend_full, merge_partials, quantize_unit, load_unit};
}

}  // namespace
}  // namespace quantspec::cpu
