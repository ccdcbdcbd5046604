// Linear layers for many rows: fp32 matrix products (base/gemm.h) on tiles of rows and columns, the
// last rows padded, so that a row's bits depend on what is in it alone: not on its place, the
// number of rows or of threads. Weights become fp32 a tile at a time, never a whole matrix.
#pragma once

#include "backend/cpu/linear.h"

namespace quantspec::cpu {

// REQUIRES: params.weights == WeightRead::kTarget.
void project_prefill(const Context& context, const ProjectParams& params);

// What each thread takes for weights of so many inputs.
std::size_t prefill_tile_bytes(int inputs);

}  // namespace quantspec::cpu
