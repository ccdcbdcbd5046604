// The matrices that passes multiply by, and norms. Pointers are to the backend's memory, but for
// those of a TensorView. Plain data, no behaviour.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "quant/weight_format.h"

namespace quantspec {

// Elements of a matrix, row-major: [rows, cols] of dtype, as a checkpoint has them, unaligned
// maybe. Of some columns of a wider matrix, rows are further apart than they are long; ops and
// backends take whole ones alone.
struct TensorView {
  const void* data;
  DType dtype;
  int rows;
  int cols;
  int stride = 0;  // elements from row to row; 0: cols
};
constexpr int stride_of(const TensorView& tensor) {
  return tensor.stride > 0 ? tensor.stride : tensor.cols;
}

// A matrix as ops read it: elements, or codes in planes of the backend's order.
struct Matrix {
  WeightFormat format = {};
  int rows = 0;
  int cols = 0;
  const void* data = nullptr;   // elements, or the upper plane with parameters; null: there is none
  const void* lower = nullptr;  // the plane of the bits below the upper four; null: not there
};
// REQUIRES: rows without a gap.
constexpr Matrix dense(const TensorView& tensor) {
  return {dense_format(tensor.dtype), tensor.rows, tensor.cols, tensor.data};
}

// y = W x + bias. The target reads all that its matrix has. Drafts read another matrix, or planes
// of the same one, in which case the two are equal.
struct Linear {
  Matrix target;                // [outputs, inputs]
  Matrix draft;                 // data null: no planes were made
  const float* bias = nullptr;  // [outputs] or null
  // Into how many a sum over inputs is cut (segments.h): a power of two, kMostSegments at most. The
  // processor and the reference cut so; CUDA cuts those of the whole into kMostSegments, always.
  int segments = 1;

  int outputs() const { return target.rows; }
  int inputs() const { return target.cols; }
};

// What a pass reads of a layer: all planes of the matrix unless it reads `kUpper`.
constexpr const Matrix& matrix_of(const Linear& linear, WeightRead read) {
  return read == WeightRead::kTarget ? linear.target : linear.draft;
}
// Whether there is all of it.
constexpr bool readable(const Linear& linear, WeightRead read) {
  const Matrix& matrix = matrix_of(linear, read);
  const bool lower = !matrix.format.dense() && matrix.format.lower_bits() > 0;
  return matrix.data != nullptr &&
         (read == WeightRead::kUpper || !lower || matrix.lower != nullptr);
}

// Bytes of the upper (with scales) and of the lower plane of a matrix.
struct PlaneBytes {
  std::size_t upper;
  std::size_t lower;
};

// RMSNorm: x * weight / sqrt(mean(x^2) + epsilon).
struct Norm {
  const float* weight;  // [hidden] (or [head_dim] for query and key norms); null: no norm
  float epsilon;
};

}  // namespace quantspec
