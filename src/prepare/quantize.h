// Codes for the weights of drafts, of which only the upper nibble is read: a value is
// offset + scale * (16 u + 7.5), u in 0..15 (quant.h). Scale and offset are free, so the sixteen
// values may lie wherever they do the least harm to what the matrix computes.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/params/linear.h"
#include "base/thread_pool.h"
#include "prepare/linear_algebra.h"

namespace quantspec {

// A matrix's codes and scales in a sliced_format(); its view reads them.
struct Codes {
  Codes(int rows, int cols, int group);
  CodedMatrix view() const;

  int rows;
  int cols;
  int group;
  std::vector<std::uint8_t> codes;
  std::vector<GroupScale> scales;
};

// `weights` below are elements.

// Round to nearest, group by group: the codec of quant.h, good for 8 bits too.
Codes round_to_nearest(ThreadPool& pool, const Matrix& weights, int group);

// GPTQ (arXiv:2210.17323): columns are rounded one after another, and what rounding one does to the
// output is made up for by the columns that are still to come, as the inputs' second moments
// `inputs` say it can be. Codes are in the middle of their cells, 16 u + 8. A group's sixteen
// values span its range, or as much of it as errs least, weighted by the inputs' squares.
//
// `factor`: inverse_factor() of `inputs`. The order of the columns is the matrix's own.
Codes gptq(ThreadPool& pool, const Matrix& weights, int group, const Gram& inputs,
           const std::vector<float>& factor);

// |(W - Q) X|^2 / |W X|^2 over some of the rows, evenly spread: the share of the output's power
// that is error, at 4 bits. X: the inputs that `inputs` is the sum of.
double output_error(ThreadPool& pool, const Matrix& weights, const CodedMatrix& coded,
                    const Gram& inputs);

}  // namespace quantspec
