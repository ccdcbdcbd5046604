// The order in which the CPU backend keeps K and V, chosen so that no kernel needs a horizontal sum
// or a shuffle: the sixteen lanes of a register are sixteen outputs, the four bytes of a lane are
// four terms of a dot product. Pure index arithmetic.
//
// The tile, 64 bytes of one plane = 16 outputs x 8 terms of 4 bits, the same for K, V and weights:
//
//     byte 4 i + j      low nibble: (output i, term 8 t + j)      high: (output i, term 8 t + 4 +
//     j)
//
// with j < 4 and t the index of the tile along the terms. A plane is [outputs / 16] blocks of
// [terms / 8] tiles. Keys: outputs = tokens, terms = channels (q K^T sums over channels).
// Values: outputs = channels, terms = tokens (p V sums over tokens).
//
// A unit of a page (quant.h) has its parts in the canonical places: keys, values, and in the upper
// unit the scales, which are in plain order. Only the two planes are in tiles.
//
// FullKv: fp16. Keys [kv_heads, capacity / 16, head_dim, 16 slots], then values
// [kv_heads, capacity, head_dim]: the scores of 16 tokens are the lanes of one register.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/quant.h"

namespace quantspec::cpu {

inline constexpr int kTileOutputs = 16;
inline constexpr int kTileTerms = 8;
inline constexpr int kTileBytes = 64;

// Index of the nibble of (output, term) in a plane of `terms` terms: nibble n is the low (n even)
// or the high half of byte n / 2.
constexpr std::size_t tile_nibble(int output, int term, int terms) {
  const std::size_t tile =
      static_cast<std::size_t>(output / kTileOutputs) * (terms / kTileTerms) + term / kTileTerms;
  const int byte = 4 * (output % kTileOutputs) + term % 4;
  return 2 * (tile * kTileBytes + byte) + term / 4 % 2;
}

// --- full-precision K and V ----------------------------------------------------------------------

// Elements of the keys (or of the values) of all kv heads.
constexpr std::size_t full_kv_elements(const KvShape& shape, int capacity) {
  return static_cast<std::size_t>(capacity) * shape.num_kv_heads * shape.head_dim;
}
// Index of the first of 16 slots' key elements of channel 0; channel c is 16 c further, slot i of
// the 16 is i further. `slot` is the first of the block, a multiple of 16.
constexpr std::size_t full_key_block(const KvShape& shape, int capacity, int kv_head, int slot) {
  return (static_cast<std::size_t>(kv_head) * capacity + slot) * shape.head_dim;
}
constexpr std::size_t full_key_index(const KvShape& shape, int capacity, int kv_head, int slot,
                                     int channel) {
  return full_key_block(shape, capacity, kv_head, slot / 16 * 16) + 16 * channel + slot % 16;
}
// Index of the value row of a slot, counted from the first key element.
constexpr std::size_t full_value_row(const KvShape& shape, int capacity, int kv_head, int slot) {
  return full_kv_elements(shape, capacity) +
         (static_cast<std::size_t>(kv_head) * capacity + slot) * shape.head_dim;
}

}  // namespace quantspec::cpu
