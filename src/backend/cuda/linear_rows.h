// What an op does with activation rows before its products and after them, where these are
// launches of their own. Rows do not see each other.
#pragma once

#include "backend/cuda/device.h"
#include "backend/params/forward.h"
#include "backend/params/linear.h"

namespace quantspec::cuda {

// out[row] = norm(x[row]), rounded to dtype, zeros beyond: [rows, padded_cols(cols)] of [rows,
// cols].
void norm_rows(Device& device, DType dtype, const Norm& norm, const float* x, int rows, int cols,
               std::byte* out);

// Where a rank leaves what the others take of it: [rows, outputs], and room to whole quads.
inline std::size_t rank_scratch_bytes(int rows, int outputs) {
  return sizeof(float) * (static_cast<std::size_t>(rows) * outputs + 3);
}
inline float* rank_scratch(Device& device, int rows, int outputs) {
  const std::size_t bytes = rank_scratch_bytes(rows, outputs);
  return reinterpret_cast<float*>(device.scratch(Scratch::kOfRank, bytes));
}

// gate = silu(gate) * up
void silu_times(Device& device, std::size_t count, float* gate, const float* up);

// Of QkvParams, from projections: per-head norms and RoPE of queries, in place in q_out, and of
// keys, which go to K and V of the sequences with the values. k, v: [num_rows, num_kv_heads *
// head_dim].
void finish_queries(Device& device, const QkvParams& params);
void append_sequences(Device& device, const QkvParams& params, const float* k, const float* v);

}  // namespace quantspec::cuda
