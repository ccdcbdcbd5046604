// The products of an op, by what its matrices are kept in.
#pragma once

#include "backend/cuda/device.h"
#include "backend/cuda/linear_layout.h"
#include "backend/params/forward.h"
#include "backend/params/linear.h"

namespace quantspec::cuda {

// --- decode_linear.cu: elements, and planes of sliced_format() -----------------------------------
//
// An op is one launch, as far as the rows fit. Of several matrices, all have one format.
constexpr bool has_tile_kernels(const WeightFormat& format) {
  return format.dense() || format == sliced_format(64) || format == sliced_format(128);
}
void tile_qkv(Device& device, const QkvParams& params);
void tile_add_linear(Device& device, const AddLinearParams& params);
void tile_gate_up(Device& device, const GateUpParams& params);
void tile_head(Device& device, const HeadParams& params);

// --- coded_linear.cu: planes of any format -------------------------------------------------------
// out = W x + bias, or out += that where `add`. x: [rows, padded_cols(inputs)], zeros beyond.
void multiply_codes(Device& device, const Matrix& matrix, WeightRead read, const float* bias,
                    const float* x, int rows, bool add, float* out);

// --- unpack_planes.cu ----------------------------------------------------------------------------
// Rows [first, first + count) of planes as a target reads them, rounded to bf16: [count,
// padded_cols(cols)], zeros beyond. `first` is a multiple of kTileRows; `out`: 16-byte aligned.
void unpack_rows(Device& device, const Matrix& matrix, int first, int count, std::byte* out);

}  // namespace quantspec::cuda
