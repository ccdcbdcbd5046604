// The matrices that passes multiply by, and norms. Pointers are to the backend's memory, but for
// those of a matrix that place_matrix() has not seen. Plain data, no behaviour.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "quant/quant.h"

namespace quantspec {

// A matrix, row-major: [rows, cols] of dtype. In a checkpoint it may be unaligned; ops read what
// WeightMemory::place_matrix() made of it.
struct TensorView {
  const void* data;
  DType dtype;
  int rows;
  int cols;
};

// y = W x + bias, readable at full precision and, where planes were made, at 4 and 8 bits.
struct Linear {
  TensorView full;                   // [outputs, inputs]
  const float* bias = nullptr;       // [outputs] or null
  const std::byte* upper = nullptr;  // planes in the backend's order; null: not made
  const std::byte* lower = nullptr;
  int group = kWeightGroup;  // inputs of one (scale, offset) of the planes: 64 or 128

  int outputs() const { return full.rows; }
  int inputs() const { return full.cols; }
};

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
