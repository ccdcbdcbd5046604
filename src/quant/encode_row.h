// From elements to codes: how weights are kept in a sliced_format(). encode_row() defines the bytes
// that every backend, and a draft store, has of them. Pure functions; thread-safe.
//
// One level (groups of 64 and 128): the code of quant.h, whose scale and offset follow from a
// group's extremes.
//
// Two levels (groups of 32 in blocks of 256): scale and offset are searched, so that the upper
// plane, which drafts read, errs least: from lines that span some shares of the group's range,
// least squares fit a line to the weights at their nearest cells, twice (fit-inl.h). Codes reach
// all weights of the group but for rounding in fp32, whatever is better for drafts, so that both
// planes err by half a step at most. Then, of a block,
//
//     block.offset = max |offset| / 255     sub_offset = |offset| / block.offset
//     block.scale  = max scale / 127        sub_scale  = scale / block.scale
//
// all rounded so that codes still reach all weights: offsets down, then scales up. Offsets are
// negative, as weights are of both signs, or all positive; in a block of both kinds a positive one
// is 0.
#pragma once

#include "quant/encode_kernels.h"
#include "quant/weight_format.h"

namespace quantspec {

extern const EncodeKernels kPortableEncode;

// Of two levels: the most that a group's integers may be, and the block's parameter by which they
// reach `most`, which is not negative.
inline constexpr int kMostSubScale = 127, kMostSubOffset = 255;
std::uint16_t block_parameter(float most, int most_sub);

// Codes and parameters of `row`: [cols]. REQUIRES: a sliced_format().
//
// Edge cases. A block of two levels with a NaN or an infinity has NaN scales and codes 0. Scales
// and offsets beyond fp16 are clamped.
void encode_row(const WeightFormat& format, int cols, const float* row, const RowCodes& out,
                const EncodeKernels& kernels = kPortableEncode);

// How elements become codes: in what format, and by what of this machine.
struct RowEncoder {
  WeightFormat format;
  EncodeKernels kernels = kPortableEncode;

  void encode(int cols, const float* row, const RowCodes& out) const {
    encode_row(format, cols, row, out, kernels);
  }
};

}  // namespace quantspec
