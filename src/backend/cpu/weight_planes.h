// Draft weights: the order of their planes, and how they are made. For each block of 16 outputs
// (the last one padded with zeros), for each group of 64 or 128 inputs:
//
//     upper   [16] fp16 scales, [16] fp16 offsets, then the tiles of the group
//     lower   the tiles of the group
//
// A tile is 64 bytes, 16 outputs x 8 inputs, as in packing.h; the last one of a row is padded with
// code 0. So a pass over the outputs reads each plane from its first byte to its last.
#pragma once

#include "backend/cpu/context.h"
#include "backend/cpu/packing.h"
#include "backend/params/linear.h"

namespace quantspec::cpu {

constexpr int weight_tiles(int cols) { return (cols + kTileTerms - 1) / kTileTerms; }
constexpr std::size_t lower_block_bytes(int cols) {
  return static_cast<std::size_t>(weight_tiles(cols)) * kTileBytes;
}
constexpr std::size_t upper_block_bytes(int cols, int group) {
  return lower_block_bytes(cols) +
         static_cast<std::size_t>(weight_groups(cols, group)) * kTileBytes;
}

PlaneBytes weight_plane_bytes(int rows, int cols, const WeightFormat& format);

// The same codes and scales as encode_weight_row, in groups of kWeightGroup. `lower` may be null.
void make_weight_planes(const Context& context, const Matrix& elements, std::byte* upper,
                        std::byte* lower);
// From codes that were made elsewhere. `lower` may be null.
void import_weight_planes(const Context& context, const CodedMatrix& coded, std::byte* upper,
                          std::byte* lower);

}  // namespace quantspec::cpu
