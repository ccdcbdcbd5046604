// Linear layers for many rows: matrix products on tiles of rows and columns, such that a row's bits
// depend on what is in it alone: not on its place, the number of rows or of threads. Where the
// kernels have bf16 (kernels.h), inputs and weights are rounded to it, sums are in fp32, and the
// products are our own (kernels_bf16.h); elsewhere all is fp32, by base/gemm.h. Weights become
// elements, or panels, a tile at a time, never a whole matrix.
#pragma once

#include "backend/cpu/linear.h"

namespace quantspec::cpu {

// REQUIRES: params.weights == WeightRead::kTarget.
void project_prefill(const Context& context, const ProjectParams& params);

// What `threads` threads take for so many rows of so many inputs.
std::size_t prefill_bytes(const Kernels& kernels, int threads, int rows, int inputs);

}  // namespace quantspec::cpu
