// The order in which the CUDA backend keeps what the format of quant.h and of params/ leaves to a
// backend. Constants and pure functions, for host and device.
//
// KV planes: the order of an mma.m16n8k16 A operand, so that codes go from memory to tensor cores
// without a shuffle. A tile is 16 x 16 codes: of keys, rows are tokens and columns channels; of
// values, rows are channels and columns tokens (the product is out^T = V^T p). One 32-bit word of a
// plane is what one lane holds of one tile: 8 nibbles,
//
//     nibble = column / 8 + 2 * (row / 8) + 4 * (column % 2)
//     lane = row % 8 * 4 + column % 8 / 2
//
// so that (word & 0x000f000f) is the A register a0, (word >> 4 & ...) a2, (word >> 8 & ...) a1 and
// (word >> 12 & ...) a3, each as the low bits of two halves. A lane's words of up to 4 tiles that
// follow each other in token direction lie side by side (one 16-byte load); these groups go by
// channel tile, then by token:
//
//     word = ((token / (16 slabs) * (head_dim / 16) + channel / 16) * 32 + lane) * slabs
//            + token / 16 % slabs,        slabs = min(4, page_size / 16)
//
// So every 64 tokens of keys (values) of a unit are head_dim * 32 consecutive bytes of each plane.
// Scales and offsets are in canonical order (quant.h).
//
// FullKv: fp16 [num_kv_heads, 2, capacity, head_dim], keys then values.
//
// Matrices at full precision: rows of padded_cols(cols) elements, padded_rows(rows) of them, zeros
// beyond the matrix, 256-byte aligned.
#pragma once

#include <cstddef>

#include "quant/quant.h"

namespace quantspec::cuda {

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Token tiles that lie side by side.
constexpr int tile_slabs(int page_size) { return page_size >= 64 ? 4 : page_size / 16; }

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

struct NibblePlace {
  std::size_t word;
  int nibble;
};
namespace internal {
constexpr NibblePlace place(const KvShape& shape, int token, int channel, int row, int column) {
  const int slabs = tile_slabs(shape.page_size);
  const int lane = row % 8 * 4 + column % 8 / 2;
  const int group = token / (16 * slabs) * (shape.head_dim / 16) + channel / 16;
  return {static_cast<std::size_t>((group * 32 + lane) * slabs + token / 16 % slabs),
          column / 8 + 2 * (row / 8) + 4 * (column % 2)};
}
}  // namespace internal

// Where the code of (token of the page, channel) lies in a unit's keys / values plane.
constexpr NibblePlace key_place(const KvShape& shape, int token, int channel) {
  return internal::place(shape, token, channel, token % 16, channel % 16);
}
constexpr NibblePlace value_place(const KvShape& shape, int token, int channel) {
  return internal::place(shape, token, channel, channel % 16, token % 16);
}

// Element (kv head, 0: keys or 1: values, slot, 0) of a FullKv.
constexpr std::size_t full_kv_index(const KvShape& shape, int capacity, int kv_head, int which,
                                    int slot) {
  return ((static_cast<std::size_t>(kv_head) * 2 + which) * capacity + slot) * shape.head_dim;
}

constexpr int padded_cols(int cols) { return round_up(cols, 64); }
constexpr int padded_rows(int rows) { return round_up(rows, 16); }

}  // namespace quantspec::cuda
