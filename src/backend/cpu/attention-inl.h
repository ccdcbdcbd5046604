// Decode attention over one page, for any number of columns; and the table of all kernels of
// attention. Included by each kernels_*.cc after its simd_*.h.
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

#include "backend/cpu/attention_full-inl.h"
#include "backend/cpu/kernels_attention.h"
#include "backend/cpu/pages-inl.h"
#include "backend/cpu/softmax-inl.h"

namespace quantspec::cpu {
namespace {

constexpr int kMaxTerms = kMaxPageSize > kMaxHeadDim ? kMaxPageSize : kMaxHeadDim;

// The register tile of a page: columns, at most, and blocks of 16 outputs for N of them. With few
// columns, one block's sums would be too few to hide the latency of dot().
template <bool kBoth>
constexpr bool kBytes = kBoth ? kMergedDot : kByteDot;  // two sums of dots a column, instead of one
template <bool kBoth>
constexpr int kPageColumns = kRegisters >= 32 ? 8
                             : kRegisters < 8 ? 1
                             : kBytes<kBoth>  ? 2
                                              : 4;
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

// A vector over the terms of a dot product, rounded to integers: x ~ step * integer.
//
// Upper plane: bytes. Both planes: 128 high + low with 0 <= low < 128, the low bytes kMaxTerms
// further; or, without kMergedDot, words in store_words()'s order.
struct IntegerTerms {
  alignas(64) std::int8_t high[2 * kMaxTerms];
  std::int32_t bias;  // minus the centre times the sum of the integers
  float step;         // times 16 where codes are upper nibbles
  float base;         // the fp32 part of the sum
};

// Four bytes, or two words.
QS_INLINE std::int32_t four_terms(const std::int8_t* terms, int quad) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, terms + 4 * quad, 4);
  return bytes;
}

// The codes that a pass reads, and the fp32 part of their centre: code value = c * kUnit + kCentre.
template <bool kBoth>
struct CodesRead {
  static constexpr int kIntegerCentre = kBoth ? 128 - kMergedCentre : 8;  // of what dot() gets
  static constexpr float kUnit = kBoth ? 1.0f : 16.0f;                    // of an integer code
  static constexpr float kCentre = kBoth ? 128.0f : 135.5f;               // 16 * 8 + 7.5
  static constexpr float kLevels = kBoth ? 16383.0f : 127.0f;             // 127 * 128 + 127
};

// Rounds x, padded with zeros to a multiple of 64. `most`: its greatest magnitude. An infinity in x
// shows in step; a NaN becomes some integer.
template <bool kBoth>
QS_INLINE void round_terms(const float* x, int count, float most, IntegerTerms& out) {
  using C = CodesRead<kBoth>;
  const F32 inverse = set1(most > 1e-30f ? C::kLevels / most : 0.0f);
  I32 sum = zero_i32();
  for (int i = 0; i < count; i += 64) {
    I32 value[4];
    for (int j = 0; j < 4; ++j) {
      value[j] = round_i32(min(load(x + i + 16 * j) * inverse, set1(C::kLevels)));
      sum = sum + value[j];
    }
    if constexpr (kBoth && !kMergedDot) {
      store_words(out.high + 2 * i, value);
    } else if constexpr (kBoth) {
      store_split(out.high + i, out.high + kMaxTerms + i, value);
    } else {
      store_s8(out.high + i, value);
    }
  }
  out.bias = -C::kIntegerCentre * static_cast<std::int32_t>(reduce_add(to_f32(sum)));
  out.step = most * (C::kUnit / C::kLevels);
}

// --- a page --------------------------------------------------------------------------------------

// The sums, over the terms of a block of 16 outputs, of one column's integers times the codes.
// Columns share the codes of a tile, made part by part so that few registers hold them.
template <bool kBoth, bool kByBytes>
struct Dots;

// The upper plane by bytes. NOTE: high nibbles stay where they are, 16 times too large, until the
// end: a shift would compete with the dot products for their port (10% of the loop).
template <>
struct Dots<false, true> {
  static constexpr int kParts = 2;
  struct Tile {
    QS_INLINE Tile(const std::uint8_t* upper, const std::uint8_t*) : u(load_u8(upper)) {}
    QS_INLINE U8x64 part(int i) const { return i == 0 ? low_nibbles(u) : high_nibbles_in_place(u); }
    U8x64 u;
  };
  QS_INLINE void add(U8x64 codes, int part, const IntegerTerms& x, int tile) {
    sum[part] = dot(sum[part], codes, x.high + 8 * tile + 4 * part);
  }
  QS_INLINE void add_bias(const IntegerTerms& x) { sum[0] = set1(x.bias); }
  QS_INLINE I32 total() const { return sum[0] + shift_right<4>(sum[1]); }
  I32 sum[2] = {zero_i32(), zero_i32()};
};

// The upper plane by nibbles.
template <>
struct Dots<false, false> {
  static constexpr int kParts = 1;
  struct Codes {
    U8x64 first, second;
  };
  struct Tile {
    QS_INLINE Tile(const std::uint8_t* upper, const std::uint8_t*) : u(load_u8(upper)) {}
    QS_INLINE Codes part(int) const { return {low_nibbles(u), high_nibbles(u)}; }
    U8x64 u;
  };
  QS_INLINE void add(const Codes& codes, int, const IntegerTerms& x, int tile) {
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
  static constexpr int kParts = 2;
  struct Tile {
    QS_INLINE Tile(const std::uint8_t* upper, const std::uint8_t* lower)
        : u(load_u8(upper)), l(load_u8(lower)) {}
    QS_INLINE U8x64 part(int i) const { return i == 0 ? merge_low(u, l) : merge_high(u, l); }
    U8x64 u, l;
  };
  QS_INLINE void add(U8x64 codes, int part, const IntegerTerms& x, int tile) {
    high = dot(high, codes, x.high + 8 * tile + 4 * part);
    low = dot(low, codes, x.high + kMaxTerms + 8 * tile + 4 * part);
  }
  QS_INLINE void add_bias(const IntegerTerms& x) { low = set1(x.bias); }
  QS_INLINE I32 total() const { return shift_left<7>(high) + low; }
  I32 high = zero_i32(), low = zero_i32();
};

// Both planes, merged to bytes that are widened to words.
template <>
struct Dots<true, false> {
  static constexpr int kParts = 4;
  struct Tile {
    QS_INLINE Tile(const std::uint8_t* upper, const std::uint8_t* lower)
        : u(load_u8(upper)), l(load_u8(lower)) {}
    QS_INLINE I32 part(int i) const {
      const U8x64 bytes = i < 2 ? merge_low(u, l) : merge_high(u, l);
      return i % 2 == 0 ? even_bytes(bytes) : odd_bytes(bytes);
    }
    U8x64 u, l;
  };
  QS_INLINE void add(I32 codes, int part, const IntegerTerms& x, int tile) {
    sum = dot_words(sum, codes, four_terms(x.high, 4 * tile + part));
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
  using D = Dots<kBoth, kBytes<kBoth>>;
  D dots[B][N];
  for (int b = 0; b < B; ++b) {
    for (int n = 0; n < N; ++n) dots[b][n].add_bias(terms[n]);
  }
  for (int t = 0; t < blocks.tiles; ++t) {
    for (int b = 0; b < B; ++b) {
      ahead.step<kBoth>();
      const std::ptrdiff_t at = b * blocks.bytes + 64 * t;
      const typename D::Tile tile(blocks.upper + at, blocks.lower + at);
#pragma GCC unroll 4
      for (int part = 0; part < D::kParts; ++part) {
        const auto codes = tile.part(part);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) dots[b][n].add(codes, part, terms[n], t);
      }
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
    most = max_abs(most, product);  // may lose a NaN, which shows in base
    base = fma(value, load(scales.centre + i), base);
  }
  for (; i % 64 != 0; i += 16) store(scaled + i, zero_f32());
  round_terms<kBoth>(scaled, count, reduce_max(most), out);
  out.base = reduce_add(base);
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
    const float sum = update_softmax(scores[n], shape.page_size, a.columns.partial.max + first + n,
                                     a.columns.partial.sum + first + n, &rescale[n]);
    if (a.sums.sum != nullptr) {
      a.sums.sum[(first + n) * a.sums.stride] = sum;
      a.sums.max[(first + n) * a.sums.stride] = a.columns.partial.max[first + n];
    }
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
  int tiles = (columns + kPageColumns<kBoth> - 1) / kPageColumns<kBoth>;
  const int plane_tiles = a.shape.page_size * a.shape.head_dim / 128;  // of K; as many of V
  const int column_steps = (2 + a.shape.value_groups) * kColumnSteps;
  Prefetcher ahead(a.page, a.next, a.shape, 2 * plane_tiles * tiles + columns * column_steps);
  for (int first = 0; first < columns; --tiles) {
    const int count = (columns - first + tiles - 1) / tiles;
    attend_tile_of<kPageColumns<kBoth>, kBoth>(count, a, first, ahead);
    first += count;
  }
}

void attend_page(const AttendPage& a) {
  return a.page.lower == nullptr ? attend_page_columns<false>(a) : attend_page_columns<true>(a);
}

constexpr AttentionKernels attention_kernels() {
  return {attend_page, attend_full, merge_partials, page_bound, quantize_unit, load_panels};
}

}  // namespace
}  // namespace quantspec::cpu
