// Integer dots of codes in planes and activations of one byte or two. Included by kernels_*.cc
// after one simd_*.h.
//
// They are of one group, 128 inputs at most: |sum(b c)| <= 128 * 255 * 127 * 128 < 2^29 for codes b
// of any format and c of 15 bits, and 16 times the sum of 4-bit codes is as small.
#pragma once

#include "backend/cpu/codes-inl.h"

namespace quantspec::cpu {
namespace {

// Wide codes where bytes have no dots: their nibbles stay apart.
template <typename Codes>
constexpr bool kApart = Codes::kWide && !kMergedDot;

// A table as tiles are looked up in it.
template <typename Codes>
struct PlaneTable {
  U8x64 bytes, below;  // of whole values, or their nibbles

  QS_INLINE explicit PlaneTable(const std::uint8_t* values) {
    if constexpr (Codes::kTable && kApart<Codes>) {
      bytes = high_nibbles(repeat_16(values));
      below = low_nibbles(repeat_16(values));
    } else if constexpr (Codes::kTable) {
      bytes = table_bytes(values);
    }
  }
};

// Codes of 16 outputs x 8 inputs in the bytes that dot() takes. NOTE: with byte dots, `last` of
// nibbles is 16 times too large, which costs nothing to undo.
template <typename Codes>
struct PlaneTile {
  TileBytes codes;
  TileBytes below;  // lower nibbles, where they are apart

  template <int kTile>
  QS_INLINE void read(const std::byte* upper, U8x64 line, const PlaneTable<Codes>& table) {
    const U8x64 u = load_u8(upper);
    if constexpr (Codes::kNibbles) {
      codes = {low_nibbles(u), kByteDot ? high_nibbles_in_place(u) : high_nibbles(u)};
    } else if constexpr (!kApart<Codes>) {
      codes = merge_codes<Codes, kTile>(u, line, table.bytes);
    } else {
      codes = {low_nibbles(u), high_nibbles(u)};
      if constexpr (Codes::kTable) {
        below = {lookup(table.below, codes.first), lookup(table.below, codes.last)};
        codes = {lookup(table.bytes, codes.first), lookup(table.bytes, codes.last)};
      } else {
        below = {low_nibbles(line), high_nibbles(line)};
      }
    }
  }
};

QS_INLINE std::int32_t four_codes(const std::int8_t* codes) {
  std::int32_t four;
  __builtin_memcpy(&four, codes, 4);
  return four;
}

// Integer sums over tiles of codes times one byte of activations; exact in any order. Two of them,
// so that none waits for another where dots add to them; where dots take several instructions,
// nibbles and codes of up to 6 bits leave one.
template <typename Codes>
struct PlaneDots {
  I32 a, b;

  QS_INLINE void clear() { a = b = zero_i32(); }

  // `x`: the eight bytes of this tile's inputs.
  QS_INLINE void add(const PlaneTile<Codes>& tile, const std::int8_t* x) {
    const std::int32_t first = four_codes(x), last = four_codes(x + 4);
    if constexpr (kApart<Codes>) {
      a = dot_pair(a, tile.codes.first, first, tile.codes.last, last);
      b = dot_pair(b, tile.below.first, first, tile.below.last, last);
    } else if constexpr (kMergedDot) {
      a = dot(a, tile.codes.first, first);
      b = dot(b, tile.codes.last, last);
    } else {
      a = dot_pair(a, tile.codes.first, first, tile.codes.last, last);
    }
  }

  // Of nibbles, 16 times their sum.
  QS_INLINE I32 total() const {
    if constexpr (kApart<Codes>) return shift_left<4>(a) + b;
    if constexpr (!Codes::kNibbles) return kMergedDot ? a + b : a;
    if constexpr (!kMergedDot) return shift_left<4>(a);
    return kByteDot ? shift_left<4>(a) + b : shift_left<4>(a + b);
  }
};

// The dots of 16 outputs and one row over the tiles of one group.
template <typename Codes, bool kSplit>
struct RowDots {
  PlaneDots<Codes> high, low;

  QS_INLINE void clear() {
    high.clear();
    if constexpr (kSplit) low.clear();
  }
  // The low bytes of activations are `padded` further than the high ones.
  QS_INLINE void add(const PlaneTile<Codes>& tile, const std::int8_t* x, int padded) {
    high.add(tile, x);
    if constexpr (kSplit) low.add(tile, x + padded);
  }
  QS_INLINE F32 total() const {
    if constexpr (kSplit) return to_f32(shift_left<7>(high.total()) + low.total());
    return to_f32(high.total());
  }
};

}  // namespace
}  // namespace quantspec::cpu
