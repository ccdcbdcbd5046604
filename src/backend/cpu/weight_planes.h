// Weights as codes: the order of their planes, how they are made, and how they become elements
// again. For each block of 16 outputs (the last one padded with codes and scales 0):
//
//     upper   spans of inputs, of each a header, then the tiles of its groups
//     lower   what is below the upper four bits of codes, in the order of the tiles
//
// A tile is 64 bytes, 16 outputs x 8 inputs, as in packing.h. The tiles of a row are padded with
// code 0 to whole lines of the lower plane. So a pass over the outputs reads each plane from its
// first byte to its last.
//
// A line of the lower plane, 64 bytes, belongs to one tile (4 bits: with the tile's own nibbles),
// to two (2 bits) or to four (1 bit). Of r bits, in the byte of an output and four inputs, tile t
// of the line has bits 2 r t .. for the first inputs and then as many for the last:
//
//     2 bits   0-1 tile 0 first, 2-3 tile 0 last, 4-5 tile 1 first, 6-7 tile 1 last
//     1 bit    0 tile 0 first, 1 tile 0 last, .. 7 tile 3 last
//
// A span is one group of inputs, two where they have 16 or 32 and no offsets, or a block of two
// levels. Its header, padded to 64 bytes, has
//
//     one level    for each group [16] fp16 scales; then [16] fp16 offsets, where there are any
//     two levels   [16] fp16 block scales, [16] fp16 block offsets; then for each group of the
//     block
//                  [16] i8 sub-scales, [16] u8 sub-offsets; neither offsets where there are none
#pragma once

#include "backend/cpu/context.h"
#include "backend/cpu/packing.h"
#include "backend/params/linear.h"

namespace quantspec::cpu {

// What values of a table are kept more than they are: they are bytes, and codes have no sign.
inline constexpr int kTableZero = 128;

// The order of a matrix of so many inputs.
struct PlaneLayout {
  PlaneFormat format;
  int tiles;
  std::size_t upper_bytes;  // of a block of 16 outputs
  std::size_t lower_bytes;

  // Throws kUnsupportedModel for formats that no kernel reads. REQUIRES: not a dense one.
  PlaneLayout(const WeightFormat& weights, int cols);

  // Tiles that share 64 bytes of the lower plane.
  int line_tiles() const { return format.lower_bits == 0 ? 1 : 4 / format.lower_bits; }
};

PlaneBytes weight_plane_bytes(int rows, int cols, const WeightFormat& format);

// The codes and parameters of encode_row(). `lower` may be null.
void make_weight_planes(const Context& context, const Matrix& elements, const WeightFormat& format,
                        std::byte* upper, std::byte* lower);
// From codes that were made elsewhere. `lower` may be null.
void import_weight_planes(const Context& context, const CodedMatrix& coded, std::byte* upper,
                          std::byte* lower);

// Rows [first, first + count) of a matrix of any format as a target reads them: [count, cols].
void read_weight_rows(const LinearKernels& kernels, const Matrix& matrix, int first, int count,
                      float* out);
// Rows [first, first + 16) of a matrix in planes, rounded, as a panel. REQUIRES: first % 16 == 0.
void read_weight_panel(const Bf16Kernels& kernels, const Matrix& matrix, int first,
                       std::uint16_t* out);

}  // namespace quantspec::cpu
