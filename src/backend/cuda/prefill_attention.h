// Between the entry of prefill attention and its kernels.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/device.h"

namespace quantspec::cuda {

// Rows of queries of one sequence and the K and V that they see. A row's bits depend on its
// position alone, wherever the rows of a launch begin and end: keys are taken in blocks at fixed
// positions, in order, and a block that a row does not see adds zeros to it. Scores are in powers
// of two: the softmax's scale and log2(e) are in q_factor, by which queries are multiplied before
// they are rounded to fp16.
struct PrefillRows {
  const float* q;  // [num_rows, num_heads, head_dim]
  float q_factor;
  float* out;        // [num_rows, num_heads, head_dim]; may be q
  const __half* kv;  // a FullKv (layout.h)
  int capacity;
  int head_dim;
  int num_heads;
  int num_kv_heads;
  int first_position;  // of row 0
  int num_rows;

  __host__ __device__ int num_keys() const { return first_position + num_rows; }
};

// --- prefill_attention_mma.cu: every GPU ---------------------------------------------------------
void attend_by_mma(Device& device, const PrefillRows& rows);

// --- prefill_attention_wgmma.cu: compute capability 9.0 ------------------------------------------
bool wgmma_attends(const Device& device, int head_dim);
void attend_by_wgmma(Device& device, const PrefillRows& rows);

}  // namespace quantspec::cuda
