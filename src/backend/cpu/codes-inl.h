// Codes out of the tiles of packing.h, and the parameters of a group, for 16 outputs at once.
// Included by kernels_*.cc after one simd_*.h.
#pragma once

#include "backend/cpu/kernels_linear.h"

namespace quantspec::cpu {
namespace {

constexpr int kTileSize = 64;   // kTileBytes
constexpr int kTileInputs = 8;  // kTileTerms

// How codes are read: kLower bits of them from the lower plane, or four bits through a table.
template <int kLowerBits, bool kInTable>
struct PlaneCodes {
  static constexpr int kLower = kLowerBits;
  static constexpr bool kTable = kInTable;
  static constexpr bool kNibbles = kLower == 0 && !kTable;
  static constexpr bool kWide = kLower == 4 || kTable;             // up to 255
  static constexpr int kLineTiles = kLower == 0 ? 1 : 4 / kLower;  // tiles to 64 bytes below them
};

// Bytes of 16 outputs: of the first four inputs of a tile, and of the last four.
struct TileBytes {
  U8x64 first, last;
};

// What the 4-bit codes of a table stand for, plus 128 and less kMergedCentre.
QS_INLINE U8x64 table_bytes(const std::uint8_t* values) {
  std::uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(values[i] - kMergedCentre);
  return repeat_16(bytes);
}

// The codes of a tile, which is the kTile-th of those in a line of the lower plane, as bytes; less
// kMergedCentre if they are wide.
template <typename Codes, int kTile>
QS_INLINE TileBytes merge_codes(U8x64 upper, U8x64 line, U8x64 table) {
  if constexpr (Codes::kTable) {
    return {lookup(table, low_nibbles(upper)), lookup(table, high_nibbles(upper))};
  } else if constexpr (Codes::kNibbles) {
    return {low_nibbles(upper), high_nibbles(upper)};
  } else if constexpr (Codes::kLower == 4) {
    return {merge_low(upper, line), merge_high(upper, line)};
  } else {
    constexpr int kBits = Codes::kLower, kAt = 2 * kBits * kTile;
    constexpr std::uint8_t kHigh = 15 << kBits, kLow = (1 << kBits) - 1;
    return {shifted<-kBits>(upper, kHigh) | shifted<kAt>(line, kLow),
            shifted<4 - kBits>(upper, kHigh) | shifted<kAt + kBits>(line, kLow)};
  }
}

// Calls f.operator()<i>() for every i < kCount.
template <int kCount, int kFirst = 0, typename F>
QS_INLINE void for_constants(const F& f) {
  f.template operator()<kFirst>();
  if constexpr (kFirst + 1 < kCount) for_constants<kCount, kFirst + 1>(f);
}

// Scale and offset of a group, which is the index-th behind this header, by outputs.
struct GroupLanes {
  F32 scale, offset;
};
QS_INLINE GroupLanes group_lanes(const PlaneFormat& format, const std::byte* header, int index) {
  const auto* halves = reinterpret_cast<const std::uint16_t*>(header);
  if (!format.two_levels) {
    return {load_f16(halves + kLanes * index),
            format.has_offset ? load_f16(halves + kLanes) : zero_f32()};
  }
  if (!format.has_offset) {
    return {load_f16(halves) * to_f32(widen_s8(header + 2 * kLanes + kLanes * index)), zero_f32()};
  }
  const std::byte* subs = header + 4 * kLanes + 2 * kLanes * index;
  const F32 minus = to_f32(widen_u8(subs + kLanes)) * set1(-1.0f);
  return {load_f16(halves) * to_f32(widen_s8(subs)), load_f16(halves + kLanes) * minus};
}

}  // namespace
}  // namespace quantspec::cpu
