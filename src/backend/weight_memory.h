// Weights as ops read them, in memory that the caller allocates.
#pragma once

#include "backend/memory.h"
#include "backend/params/forward.h"
#include "quant/quant.h"

namespace quantspec {

class WeightMemory : public virtual DeviceMemory {
 public:
  // Bytes that place_matrix() fills; 0: matrices are read where the checkpoint is mapped.
  virtual std::size_t matrix_bytes(int rows, int cols, DType dtype) const = 0;
  // The matrix as ops read it: moved to `memory` from the host's, or as it was.
  virtual TensorView place_matrix(const TensorView& matrix, std::byte* memory) = 0;

  // Of the planes of a [rows, cols] matrix, by which drafts read it.
  virtual PlaneBytes plane_bytes(int rows, int cols, int group = kWeightGroup) const = 0;
  // Quantizes `full` (section 4 of docs/design.md) into the backend's order, in groups of
  // kWeightGroup; `lower` may be null.
  virtual void make_planes(const TensorView& full, std::byte* upper, std::byte* lower) = 0;
  // The same from codes that were made elsewhere, in groups of 64 or 128 inputs.
  virtual void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) = 0;
};

}  // namespace quantspec
