// Weights as ops read them, in memory that the caller allocates.
#pragma once

#include "backend/memory.h"
#include "backend/params/forward.h"
#include "quant/weight_format.h"

namespace quantspec {

struct RowEncoder;  // quant/encode_row.h

class WeightMemory : public virtual DeviceMemory {
 public:
  // Bytes that place_matrix() fills; 0: matrices are read where the checkpoint is mapped.
  virtual std::size_t matrix_bytes(int rows, int cols, DType dtype) const = 0;
  // The elements as ops read them: moved to `memory` from the host's, or as they were.
  virtual Matrix place_matrix(const TensorView& tensor, std::byte* memory) = 0;

  // Of the planes of a [rows, cols] matrix. Throws kUnsupportedModel for formats that it cannot
  // read.
  virtual PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format) const = 0;
  // How elements are best kept for drafts here, in a sliced_format(): smaller groups are accepted
  // more often, and cost arithmetic.
  virtual RowEncoder encoder() const = 0;
  // Quantizes a matrix of elements as encode_row() does, into the backend's order. `format` is the
  // encoder's, or any sliced_format() on a host; `lower` may be null.
  virtual void make_planes(const Matrix& elements, const WeightFormat& format, std::byte* upper,
                           std::byte* lower) = 0;
  // The same from codes that were made elsewhere, whose rows are read by all threads of the host.
  // What a read throws is thrown, once no thread reads any more.
  virtual void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) = 0;
};

}  // namespace quantspec
