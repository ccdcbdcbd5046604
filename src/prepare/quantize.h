// Codes for the weights of drafts, of which only the upper nibble is read: a value is
// offset + scale * (16 u + 7.5), u in 0..15 (quant.h). Scale and offset are free, so the sixteen
// values may lie wherever they do the least harm to what the matrix computes. In groups of 32 they
// are whole multiples of their block's (weight_format.h).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/params/linear.h"
#include "base/thread_pool.h"
#include "prepare/linear_algebra.h"
#include "quant/encode_row.h"

namespace quantspec {

// A matrix's codes and parameters in a sliced_format(); its view reads them.
struct Codes {
  Codes(int rows, int cols, const WeightFormat& format);
  CodedMatrix view() const;
  RowCodes row(int row);

  int rows;
  int cols;
  WeightFormat format;
  std::vector<std::uint8_t> codes;        // [rows, cols]
  std::vector<GroupScale> scales;         // [rows, blocks]
  std::vector<std::int8_t> sub_scales;    // [rows, groups] in two levels
  std::vector<std::uint8_t> sub_offsets;  // the same
};

// `weights` below are elements.

// Round to nearest, group by group: the bytes of loading (encode_row()), good for 8 bits too.
Codes round_to_nearest(ThreadPool& pool, const Matrix& weights, const RowEncoder& encoder);

// GPTQ (arXiv:2210.17323): columns are rounded one after another, and what rounding one does to the
// output is made up for by the columns that are still to come, as the inputs' second moments
// `inputs` say it can be. Codes are in the middle of their cells, 16 u + 8. A group's sixteen
// values lie so that they err least, weighted by the inputs' squares, of what is tried: shares of
// its range, and lines fitted to them.
//
// `factor`: inverse_factor() of `inputs`. The order of the columns is the matrix's own.
Codes gptq(ThreadPool& pool, const Matrix& weights, const WeightFormat& format, const Gram& inputs,
           const std::vector<float>& factor);

// |(W - Q) X|^2 / |W X|^2 over some of the rows, evenly spread: the share of the output's power
// that is error, at 4 bits. X: the inputs that `inputs` is the sum of.
double output_error(ThreadPool& pool, const Matrix& weights, const CodedMatrix& coded,
                    const Gram& inputs);

}  // namespace quantspec
