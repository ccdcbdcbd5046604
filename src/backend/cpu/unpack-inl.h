// Weights as fp32 out of their planes, the bits that decode_row() gives: what rounds is in its
// order. Included by kernels_*.cc after one simd_*.h.
#pragma once

#include "backend/cpu/codes-inl.h"
#include "backend/cpu/elementwise-inl.h"

namespace quantspec::cpu {
namespace {

constexpr int kMostGroup = 128;

// Codes of one group by outputs, and scale and offset of each.
struct UnpackedGroup {
  alignas(64) std::uint8_t codes[kLanes][kMostGroup];
  float scale[kLanes];
  float offset[kLanes];
};

template <typename Codes>
QS_INLINE void unpack_line(const std::byte* upper, U8x64 line, U8x64 table, int input,
                           UnpackedGroup& to) {
  for_constants<Codes::kLineTiles>([&]<int kTile>() {
    const auto tile = merge_codes<Codes, kTile>(load_u8(upper + kTile * kTileSize), line, table);
    alignas(64) std::uint8_t bytes[2][kTileSize];
    store_u8(bytes[0], tile.first);
    store_u8(bytes[1], tile.last);
    for (int lane = 0; lane < kLanes; ++lane) {
      std::uint8_t* codes = to.codes[lane] + input + kTile * kTileInputs;
      __builtin_memcpy(codes, bytes[0] + 4 * lane, 4);
      __builtin_memcpy(codes + 4, bytes[1] + 4 * lane, 4);
    }
  });
}

// Writes `count` weights from `input` on, of the outputs that are wanted.
template <typename Codes>
void write_group(const PlaneUnpack& g, const UnpackedGroup& group, int input, int count) {
  constexpr int kCentre = Codes::kWide ? kMergedCentre : 0;
  const I32 zero = set1(std::int32_t{g.zero - kCentre});
  for (int i = 0; i < g.outputs; ++i) {
    const int lane = g.first + i;
    const F32 scale = set1(group.scale[lane]), offset = set1(group.offset[lane]);
    float* out = g.out + i * g.stride + input;
    for_lanes(count, [&](int k, int n) {
      const std::uint8_t* codes = group.codes[lane] + k;
      const I32 code = (kCentre == 0 ? widen_u8(codes) : widen_s8(codes)) - zero;
      const F32 weight = scale * to_f32(code);
      store_run(out + k, g.format.has_offset ? weight + offset : weight, n);
    });
  }
}

template <typename Codes>
void unpack_block(const PlaneUnpack& g) {
  const PlaneFormat& format = g.format;
  U8x64 table{};
  if constexpr (Codes::kTable) table = table_bytes(format.values);
  UnpackedGroup group;
  const std::byte *upper = g.upper, *lower = g.lower, *header = nullptr;
  for (int first = 0, index = 0; first < g.inputs; first += format.group, ++index) {
    if (index % format.span_groups == 0) {
      header = upper;
      upper += format.header_bytes;
    }
    const int count = g.inputs - first < format.group ? g.inputs - first : format.group;
    for (int k = 0; k < count; k += kTileInputs * Codes::kLineTiles) {
      unpack_line<Codes>(upper, Codes::kLower > 0 ? load_u8(lower) : U8x64{}, table, k, group);
      upper += kTileSize * Codes::kLineTiles;
      lower += Codes::kLower > 0 ? kTileSize : 0;
    }
    const GroupLanes lanes = group_lanes(format, header, index % format.span_groups);
    store(group.scale, lanes.scale * set1(g.unit));
    store(group.offset, lanes.offset);
    write_group<Codes>(g, group, first, count);
  }
}

void unpack_planes(const PlaneUnpack& g) {
  if (g.format.values != nullptr) return unpack_block<PlaneCodes<0, true>>(g);
  switch (g.format.lower_bits) {
    case 1:
      return unpack_block<PlaneCodes<1, false>>(g);
    case 2:
      return unpack_block<PlaneCodes<2, false>>(g);
    case 4:
      return unpack_block<PlaneCodes<4, false>>(g);
    default:
      return unpack_block<PlaneCodes<0, false>>(g);
  }
}

}  // namespace
}  // namespace quantspec::cpu
