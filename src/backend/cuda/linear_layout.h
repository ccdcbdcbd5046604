// How the planes of a weight matrix, of any format (quant/weight_format.h), lie in device memory:
// in the order in which the lanes of a warp take them to tensor cores, so that a warp reads one
// stream of whole 512-byte lines.
//
// A tile is 16 outputs (rows of W). A unit is 128 inputs of a tile, or 256, a block, where scales
// have two levels. Units of a tile follow each other, tiles follow each other:
//
//   upper plane   per unit: the upper nibbles of its codes, then its parameters
//   lower plane   per unit: the bits below, 1, 2 or 4 of each code
//
// Of a span, 64 inputs, a lane 4 * (row % 8) + t has 16 inputs of rows r and r + 8: of each group
// a quarter, the t-th (lane_input()), so that the products of a group are those of whole words.
// With b bits of each these are b words side by side (4: one 16-byte load). Byte i % 4 of a word
// has 8 / b fields, one for each of as many codes q = 2 * (i / 4) + row / 8 of the lane's inputs i,
// from the lowest bits on (code_word(), code_shift()). So a word of nibbles holds 4 inputs of rows
// r (low nibbles of its bytes) and r + 8 (high nibbles), and a shift and a mask bring the lower
// bits of 4 codes to where those nibbles are.
//
// Parameters come for 16 rows at a time, those of rows r and r + 8 side by side:
//
//   one level    for each group: (scale, offset), or the scale alone where there are no offsets
//   two levels   the same of the block; then, for rows r and r + 8, all groups' i8 sub-scales; then
//                their u8 sub-offsets, where there are any
//
// What is beyond the matrix has code 0, scale 0 and offset 0.
#pragma once

#include <cstddef>

#include "backend/cuda/layout.h"
#include "quant/weight_format.h"

namespace quantspec::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kPlaneUnit = 128;  // inputs
inline constexpr int kSpanInputs = 64;
inline constexpr int kLaneInputs = 16;  // of a span, of rows r and r + 8
inline constexpr int kMostUnit = 256;

constexpr int row_tiles(int rows) { return round_up(rows, kTileRows) / kTileRows; }

// Which input of a span is the i-th of a lane 4 g + t, with groups of so many inputs.
constexpr int lane_input(int group, int t, int i) {
  const int own = group < kSpanInputs ? group / 4 : kLaneInputs;  // of a group, side by side
  return i / own * 4 * own + t * own + i % own;
}
// Where a lane has `bits` bits of the code of its input i, of row r (half 0) or r + 8: in which of
// its words, from which bit on.
constexpr int code_word(int bits, int i, int half) { return (i / 4 * 2 + half) * bits / 8; }
constexpr int code_shift(int bits, int i, int half) {
  return i % 4 * 8 + (i / 4 * 2 + half) * bits % 8;
}
// The place of a row among the 16 of a parameter.
constexpr int scale_place(int row) { return row % 8 * 2 + row / 8; }

// Sizes are in bytes.
struct PlaneLayout {
  int unit;   // inputs
  int units;  // of a row
  int group;
  int lower_bits;
  bool two_levels;
  bool has_offset;

  constexpr PlaneLayout(const WeightFormat& format, int cols)
      : unit(format.two_levels() ? format.block : kPlaneUnit),
        units(round_up(cols, unit) / unit),
        group(format.group),
        lower_bits(format.lower_bits()),
        two_levels(format.two_levels()),
        has_offset(format.has_offset) {}

  constexpr int groups() const { return unit / group; }  // of a unit
  constexpr int scales() const { return two_levels ? 1 : groups(); }
  constexpr int kinds() const { return has_offset ? 2 : 1; }
  // Of fp16 scales, or scales and offsets, of a group or block.
  constexpr int scale_bytes() const { return 2 * kinds() * kTileRows; }
  constexpr int nibble_bytes() const { return kTileRows * unit / 2; }
  constexpr int upper_bytes() const {
    return sub_offsets_at() + (two_levels && has_offset ? groups() * kTileRows : 0);
  }
  constexpr int lower_bytes() const { return kTileRows * unit * lower_bits / 8; }

  // Where those of a group begin in the upper plane's unit.
  constexpr int scale_at(int index) const {
    return nibble_bytes() + (two_levels ? 0 : index) * scale_bytes();
  }
  constexpr int sub_scales_at() const { return nibble_bytes() + scales() * scale_bytes(); }
  constexpr int sub_offsets_at() const {
    return sub_scales_at() + (two_levels ? groups() * kTileRows : 0);
  }
  // The place of a group's among them.
  constexpr int sub_place(int row, int index) const {
    return row % 8 * 2 * groups() + index * 2 + row / 8;
  }
};

// --- groups of 64 or 128 inputs with offsets, 8 bits: what linear_planes.cuh reads ---------------

inline constexpr int kPlaneUnitWords = 256;      // 16 x 128 nibbles
inline constexpr int kGroupScaleBytes = 16 * 4;  // of a tile's 16 rows
inline constexpr int kLowerUnitBytes = 4 * kPlaneUnitWords;

constexpr int upper_unit_bytes(int group) {
  return 4 * kPlaneUnitWords + kPlaneUnit / group * kGroupScaleBytes;
}
constexpr int plane_units(int cols) { return round_up(cols, kPlaneUnit) / kPlaneUnit; }

}  // namespace quantspec::cuda
