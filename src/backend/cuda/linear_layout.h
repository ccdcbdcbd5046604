// How the planes of a weight matrix lie in device memory: in the order in which the lanes of a warp
// take them to tensor cores, so that a warp reads one stream of whole 512-byte lines.
//
// A tile is 16 outputs (rows of W); a unit is kPlaneUnit inputs of a tile. Units of a tile follow
// each other, tiles follow each other:
//
//   upper plane   per unit: 256 words of upper nibbles, then (scale, offset) of its groups, [groups
//                 of a unit, 8, 2] GroupScale: rows r and r + 8 side by side
//   lower plane   per unit: 256 words of lower nibbles
//
// A word holds 4 inputs of rows r (low nibbles of its bytes) and r + 8 (high nibbles): in a unit,
// lane 4 * (row % 8) + input % 64 / 16 has its words of 64 inputs side by side (one 16-byte load).
// With inputs 16 t .. 16 t + 15 of every 64 in one lane, activations are wanted in their natural
// order. What is beyond the matrix has code 0, scale 0 and offset 0.
#pragma once

#include <cstddef>

#include "backend/cuda/layout.h"

namespace quantspec::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kPlaneUnit = 128;           // inputs; one or two groups
inline constexpr int kPlaneUnitWords = 256;      // 16 x 128 nibbles
inline constexpr int kGroupScaleBytes = 16 * 4;  // of a tile's 16 rows
inline constexpr int kLowerUnitBytes = 4 * kPlaneUnitWords;

constexpr int upper_unit_bytes(int group) {
  return 4 * kPlaneUnitWords + kPlaneUnit / group * kGroupScaleBytes;
}
constexpr int plane_units(int cols) { return round_up(cols, kPlaneUnit) / kPlaneUnit; }
constexpr int row_tiles(int rows) { return round_up(rows, kTileRows) / kTileRows; }

// The word and the nibble of (row, input) of a unit.
constexpr NibblePlace weight_place(int row, int input) {
  const int lane = row % 8 * 4 + input % 64 / 16;
  return {static_cast<std::size_t>(input / 64 * 128 + lane * 4 + input % 16 / 4),
          row / 8 + 2 * (input % 4)};
}

// The place of a row's scale among the 16 of a group.
constexpr int scale_place(int row) { return row % 8 * 2 + row / 8; }

}  // namespace quantspec::cuda
