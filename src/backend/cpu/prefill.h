// Linear layers for many rows: matrix products (base/gemm.h) on tiles of rows and columns, such
// that a row's bits depend on what is in it alone: not on its place, the number of rows or of
// threads. Where the kernels have bf16 (kernels.h), inputs and weights are rounded to it and sums
// are in fp32; elsewhere all is fp32. Weights become elements a tile at a time, never a whole
// matrix; those of a checkpoint in bf16 are multiplied where they are.
#pragma once

#include "backend/cpu/linear.h"

namespace quantspec::cpu {

// REQUIRES: params.weights == WeightRead::kTarget.
void project_prefill(const Context& context, const ProjectParams& params);

// What `threads` threads take for so many rows of so many inputs.
std::size_t prefill_bytes(const Kernels& kernels, int threads, int rows, int inputs);

}  // namespace quantspec::cpu
