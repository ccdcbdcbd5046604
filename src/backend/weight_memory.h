// Weights as ops read them, in memory that the caller allocates.
#pragma once

#include "backend/memory.h"
#include "backend/params/forward.h"
#include "quant/weight_format.h"

namespace quantspec {

class WeightMemory : public virtual DeviceMemory {
 public:
  // Bytes that place_matrix() fills; 0: matrices are read where the checkpoint is mapped.
  virtual std::size_t matrix_bytes(int rows, int cols, DType dtype) const = 0;
  // The elements as ops read them: moved to `memory` from the host's, or as they were.
  virtual Matrix place_matrix(const TensorView& tensor, std::byte* memory) = 0;

  // Of the planes of a [rows, cols] matrix. Throws kUnsupportedModel for formats that it cannot
  // read.
  virtual PlaneBytes plane_bytes(int rows, int cols,
                                 const WeightFormat& format = sliced_format()) const = 0;
  // Quantizes a matrix of elements (section 4 of docs/design.md) into the backend's order, in
  // sliced_format(); `lower` may be null.
  virtual void make_planes(const Matrix& elements, std::byte* upper, std::byte* lower) = 0;
  // The same from codes that were made elsewhere, whose rows are read by all threads of the host.
  // What a read throws is thrown, once no thread reads any more.
  virtual void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) = 0;
};

}  // namespace quantspec
