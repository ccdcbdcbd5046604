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

#define QS_NOINLINE __attribute__((noinline))

namespace quantspec::cpu {
namespace {

constexpr int kFullColumns = kRegisters >= 32 ? 4 : 1;
constexpr int kMaxTerms = kMaxPageSize > kMaxHeadDim ? kMaxPageSize : kMaxHeadDim;

// The register tile of a page: columns, at most, and blocks of 16 outputs for N of them. With few
// columns, one block's sums would be too few to hide the latency of dot().
constexpr int kPageColumns = kRegisters >= 32 ? 8 : kRegisters >= 8 ? 4 : 1;
template <int N>
constexpr int kPageBlocks = kRegisters >= 32 && N <= 6 ? 2 : 1;

// --- small parts ---------------------------------------------------------------------------------

constexpr int kColumnSteps = 8;  // of prefetching, whenever a column needs float arithmetic

// Walks over the next unit in the order in which it will be read, at an even pace over the steps of
// the present one, so that memory never rests. NOTE: bursts would stall the present unit's loads.
class Prefetcher {
 public:
  // Null `next.upper`: stays where it is, in the present unit.
  QS_INLINE Prefetcher(const PageUnit& now, const PageUnit& next, const PageShape& shape, int steps)
      : upper_(now.upper), lower_(now.lower) {
    if (next.upper == nullptr) return;
    upper_ = next.upper;
    if (next.lower != nullptr) lower_ = next.lower;
    const UnitParts parts = unit_parts(shape);
    pace_ = static_cast<std::uint32_t>(2 * parts.plane_bytes / 64 * kOne / steps);
    for (std::ptrdiff_t i = 2 * parts.plane_bytes; i < parts.upper_bytes; i += 64) {
      prefetch_to_l2(upper_ + i);  // the scales are read first
    }
  }
  template <bool kBoth>
  QS_INLINE void step() {
    const std::ptrdiff_t offset = position_ / kOne * 64;
    prefetch_to_l2(upper_ + offset);  // NOTE: faster than to L1, which two units do not fit in
    if constexpr (kBoth) prefetch_to_l2(lower_ + offset);
    position_ += pace_;
  }
  template <bool kBoth>
  QS_INLINE void steps(int count) {
    for (int i = 0; i < count; ++i) step<kBoth>();
  }

 private:
  static constexpr std::uint32_t kOne = 1024;  // fixed point: a cache line
  const std::uint8_t* upper_;
  const std::uint8_t* lower_;
  std::uint32_t position_ = 0;
  std::uint32_t pace_ = 0;
};

// A vector over the terms of a dot product, rounded to integers: x ~ step * (128 high + low), or
// step * high where only the upper plane is read. 0 <= low < 128.
struct IntegerTerms {
  alignas(64) std::int8_t high[kMaxTerms];
  alignas(64) std::int8_t low[kMaxTerms];
  std::int32_t bias;  // minus the centre times the sum of the integers
  float step;         // times 16 where codes are upper nibbles
  float base;         // the fp32 part of the sum
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
  static constexpr float kLevels = kBoth ? 16383.0f : 127.0f;  // 127 * 128 + 127
};

// Rounds x, padded with zeros to a multiple of 64. `most`: its greatest magnitude. A NaN or an
// infinity in x shows in step.
template <bool kBoth>
QS_INLINE void round_terms(const float* x, int count, float most, IntegerTerms& out) {
  using C = CodesRead<kBoth>;
  const F32 inverse = set1(most > 1e-30f ? C::kLevels / most : 0.0f);
  I32 sum = zero_i32();
  for (int i = 0; i < count; i += 64) {
    I32 value[4];
    for (int j = 0; j < 4; ++j) {
      const F32 scaled = min(load(x + i + 16 * j) * inverse, set1(C::kLevels));
      value[j] = round_i32(scaled);  // NaN: any integer
      sum = sum + value[j];
    }
    if constexpr (kBoth) {
      store_split(out.high + i, out.low + i, value);
    } else {
      store_s8(out.high + i, value);
    }
  }
  out.bias = -C::kIntegerCentre * static_cast<std::int32_t>(reduce_add(to_f32(sum)));
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
    first = dot(first, codes.first, x.high + 8 * tile);
    second = dot(second, codes.second, x.high + 8 * tile + 4);
  }
  QS_INLINE void add_bias(const IntegerTerms& x) { first = set1(x.bias); }
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
  QS_INLINE void add_bias(const IntegerTerms& x) { sum = set1(x.bias); }
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
    high = dot(high, codes.first, x.high + 8 * tile);
    low = dot(low, codes.first, x.low + 8 * tile);
    high = dot(high, codes.second, x.high + 8 * tile + 4);
    low = dot(low, codes.second, x.low + 8 * tile + 4);
  }
  QS_INLINE void add_bias(const IntegerTerms& x) { low = set1(x.bias); }
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
  template <int kShift>
  QS_INLINE void add_plane(const Nibbles::Codes& codes, std::int32_t terms0, std::int32_t terms1) {
    sum = dot_pair<kShift>(sum, codes.first, terms0, codes.second, terms1);
  }
  QS_INLINE void add(const Codes& codes, const IntegerTerms& x, int tile) {
    const std::int32_t high0 = four_terms(x.high, 2 * tile);
    const std::int32_t high1 = four_terms(x.high, 2 * tile + 1);
    const std::int32_t low0 = four_terms(x.low, 2 * tile);
    const std::int32_t low1 = four_terms(x.low, 2 * tile + 1);
    add_plane<11>(codes.upper, high0, high1);
    add_plane<4>(codes.upper, low0, low1);
    add_plane<7>(codes.lower, high0, high1);
    add_plane<0>(codes.lower, low0, low1);
  }
  QS_INLINE void add_bias(const IntegerTerms& x) { sum = set1(x.bias); }
  QS_INLINE I32 total() const { return sum; }
  I32 sum = zero_i32();
};

// Some blocks of 16 outputs of a unit.
struct Blocks {
  const std::uint8_t* upper;
  const std::uint8_t* lower;
  std::ptrdiff_t bytes;  // of one block
  int tiles;             // of one block
};

// Dots of N columns with B blocks: out[B, N]. NOTE: not inlined, for the sake of its registers.
template <int N, int B, bool kBoth>
QS_NOINLINE void dot_blocks(const Blocks& blocks, const IntegerTerms* terms, Prefetcher& prefetcher,
                            I32* out) {
  Prefetcher ahead = prefetcher;  // a copy stays in registers
  Dots<kBoth, kByteDot> dots[B][N];
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) dots[b][n].add_bias(terms[n]);
  }
  for (int t = 0; t < blocks.tiles; ++t) {
    for (int b = 0; b < B; ++b) {
      ahead.step<kBoth>();
      const std::ptrdiff_t tile = b * blocks.bytes + 64 * t;
      const typename Dots<kBoth, kByteDot>::Codes codes(blocks.upper + tile, blocks.lower + tile);
      for (int n = 0; n < N; ++n) dots[b][n].add(codes, terms[n], t);
    }
  }
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) out[b * N + n] = dots[b][n].total();
  }
  prefetcher = ahead;
}

// Calls use(b, dots[N]) for each of `count` blocks.
template <int N, bool kBoth, typename F>
QS_INLINE void for_each_block(Blocks blocks, int count, const IntegerTerms* terms,
                              Prefetcher& ahead, const F& use) {
  constexpr int kMany = kPageBlocks<N>;
  I32 dots[kMany * N];
  int b = 0;
  const auto advance = [&](int done) {
    for (int i = 0; i < done; ++i) use(b + i, dots + i * N);
    b += done;
    blocks.upper += done * blocks.bytes;
    blocks.lower += done * blocks.bytes;
  };
  while (b + kMany <= count) {
    dot_blocks<N, kMany, kBoth>(blocks, terms, ahead, dots);
    advance(kMany);
  }
  while (b < count) {
    dot_blocks<N, 1, kBoth>(blocks, terms, ahead, dots);
    advance(1);
  }
}

// Scales and offsets of a page's channels or tokens, as fold() wants them.
struct FoldScales {
  alignas(64) float scale[kMaxTerms];
  alignas(64) float centre[kMaxTerms];  // offset + kCentre scale
};
template <bool kBoth>
QS_INLINE void widen_scales(const std::uint16_t* scales, const std::uint16_t* offsets, int count,
                            FoldScales& out) {
  for (int i = 0; i < count; i += 16) {
    const F32 scale = load_f16(scales + i);
    store(out.scale + i, scale);
    store(out.centre + i, fma(scale, set1(CodesRead<kBoth>::kCentre), load_f16(offsets + i)));
  }
}

// The two sums of the formula above for x = q or p over a page's channels or tokens: x scale as
// integers, and the sum of x (offset + centre scale). NOTE: not inlined: it would be once a column,
// and the code would outgrow the cache.
template <bool kBoth>
QS_NOINLINE void fold(const float* x, const FoldScales& scales, int count, IntegerTerms& out) {
  alignas(64) float scaled[kMaxTerms];
  F32 most = zero_f32(), base = zero_f32();
  int i = 0;
  for (; i < count; i += 16) {
    const F32 value = load(x + i);
    const F32 product = value * load(scales.scale + i);
    store(scaled + i, product);
    most = max_magnitude(most, product);
    base = fma(value, load(scales.centre + i), base);
  }
  for (; i % 64 != 0; i += 16) store(scaled + i, zero_f32());
  round_terms<kBoth>(scaled, count, reduce_max_magnitude(most), out);
  out.base = reduce_add(base);
}

// exp(x) for x <= 0, in two thirds of exp()'s instructions: relative error below 4e-7, 2e-7 where x
// > -20 (a minimax polynomial of degree 5, ln 2 in one part); 0 for x < -87, NaN for NaN.
QS_INLINE F32 exp_nonpositive(F32 x) {
  const I32 n = round_i32(x * set1(1.44269504088896341f));
  const F32 r = fma(to_f32(n), set1(-0x1.62e430p-1f), x);
  F32 p = set1(0x1.0f9f9cp-7f);
  p = fma(p, r, set1(0x1.573a1ap-5f));
  p = fma(p, r, set1(0x1.555a80p-3f));
  p = fma(p, r, set1(0x1.fffdc6p-2f));
  p = fma(p, r, set1(0x1.fffff6p-1f));
  p = fma(p, r, set1(1.0f));
  return select_less(x, set1(-87.0f), zero_f32(), p * pow2(n));
}

// Turns `count` (a multiple of 16) scores into probabilities relative to the column's new maximum.
// rescale_out: the factor, in every lane, that what it had before must be multiplied with. NOTE:
// not inlined, like fold(); an out argument because g++ 12 crashes on a returned F32.
QS_NOINLINE void update_softmax(float* scores, int count, float* column_max, float* column_sum,
                                F32* rescale_out) {
  F32 most = set1(-__builtin_inff());
  for (int t = 0; t < count; t += 16) most = max(most, load(scores + t));
  const float new_max = max(*column_max, reduce_max(most));
  const F32 rescale = exp_nonpositive(set1(*column_max) - set1(new_max));
  F32 sum = zero_f32();
  for (int t = 0; t < count; t += 16) {
    const F32 p = exp_nonpositive(load(scores + t) - set1(new_max));
    store(scores + t, p);
    sum = sum + p;
  }
  *column_max = new_max;
  alignas(
      64) float new_sum[16];  // NOTE: storing one lane to column_sum would stall the next column
  store(new_sum, fma(set1(*column_sum), rescale, set1(reduce_add(sum))));
  *column_sum = new_sum[0];
  *rescale_out = rescale;
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
  alignas(64) float scores[N][kMaxPageSize];
  FoldScales fold_scales;
  F32 rescale[N];

  widen_scales<kBoth>(scales.key_scale, scales.key_offset, shape.head_dim, fold_scales);
  for (int n = 0; n < N; ++n) {
    ahead.steps<kBoth>(kColumnSteps);
    fold<kBoth>(a.columns.q + (first + n) * shape.head_dim, fold_scales, shape.head_dim, terms[n]);
  }
  const Blocks keys{a.page.upper, lower, 16 * shape.head_dim / 2, shape.head_dim / 8};
  for_each_block<N, kBoth>(keys, shape.page_size / 16, terms, ahead, [&](int b, const I32* dots) {
    for (int n = 0; n < N; ++n) {
      const F32 centred = to_f32(dots[n]);
      store(scores[n] + 16 * b, fma(centred, set1(terms[n].step), set1(terms[n].base)));
    }
  });
  for (int n = 0; n < N; ++n) {
    ahead.steps<kBoth>(kColumnSteps);
    update_softmax(scores[n], shape.page_size, a.columns.partial.max + first + n,
                   a.columns.partial.sum + first + n, &rescale[n]);
  }
  for (int g = 0; g < shape.value_groups; ++g) {
    std::uint16_t scale_buffer[kMaxPageSize], offset_buffer[kMaxPageSize];
    const std::uint16_t* scale = value_group(scales.value_scale, shape, g, scale_buffer);
    const std::uint16_t* offset = value_group(scales.value_offset, shape, g, offset_buffer);
    widen_scales<kBoth>(scale, offset, shape.page_size, fold_scales);
    for (int n = 0; n < N; ++n) {
      ahead.steps<kBoth>(kColumnSteps);
      fold<kBoth>(scores[n], fold_scales, shape.page_size, terms[n]);
    }
    const int begin = kValueGroup * g;
    const int end = begin + kValueGroup < shape.head_dim ? begin + kValueGroup : shape.head_dim;
    const int block_bytes = 16 * shape.page_size / 2;
    const std::ptrdiff_t first_block = parts.plane_bytes + begin / 16 * block_bytes;
    const Blocks values{a.page.upper + first_block, lower + first_block, block_bytes,
                        shape.page_size / 8};
    float* out = a.columns.partial.out + first * shape.head_dim + begin;
    for_each_block<N, kBoth>(values, (end - begin) / 16, terms, ahead, [&](int b, const I32* dots) {
      for (int n = 0; n < N; ++n) {
        float* at = out + n * shape.head_dim + 16 * b;
        const F32 centred = to_f32(dots[n]);
        const F32 sum = fma(centred, set1(terms[n].step), set1(terms[n].base));
        store(at, fma(load(at), rescale[n], sum));
      }
    });
  }
}

template <int N, bool kBoth>
void attend_tile_of(int count, const AttendPage& a, int first, Prefetcher& ahead) {
  if constexpr (N > 1) {
    if (count < N) return attend_tile_of<N - 1, kBoth>(count, a, first, ahead);
  }
  attend_tile<N, kBoth>(a, first, ahead);
}

// Columns in tiles of about the same size.
template <bool kBoth>
void attend_page_columns(const AttendPage& a) {
  const int columns = a.columns.num_columns;
  int tiles = (columns + kPageColumns - 1) / kPageColumns;
  const int plane_tiles = a.shape.page_size * a.shape.head_dim / 128;  // of K; as many of V
  const int column_steps = (2 + a.shape.value_groups) * kColumnSteps;
  Prefetcher ahead(a.page, a.next, a.shape, 2 * plane_tiles * tiles + columns * column_steps);
  for (int first = 0; first < columns; --tiles) {
    const int count = (columns - first + tiles - 1) / tiles;
    attend_tile_of<kPageColumns, kBoth>(count, a, first, ahead);
    first += count;
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
    update_softmax(scores[n], (tokens[n] + 15) / 16 * 16, a.columns.partial.max + first + n,
                   a.columns.partial.sum + first + n, &rescale[n]);
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
