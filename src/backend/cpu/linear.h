// Linear layers: several that read the same input run in one parallel region.
#pragma once

#include <span>

#include "backend/cpu/context.h"
#include "backend/params/pass.h"

namespace quantspec::cpu {

struct Projection {
  const Linear* linear;
  float* y;  // [rows, linear->outputs()]
};

inline constexpr std::size_t kMostProjections = 3;  // of one region

struct ProjectParams {
  Phase phase;
  WeightRead weights;
  const float* x;  // [rows, inputs]
  int rows;
  std::span<const Projection> projections;  // 1 to kMostProjections, all of the same inputs
  bool accumulate = false;                  // y += W x + bias instead of y = W x + bias
};

// Elements in decode: fp32 arithmetic, a row's bits do not depend on what is beside it (see
// gemv-inl.h). Planes, and drafts of any phase: the same, with activations rounded to integers
// (planes-inl.h). Each projection may have a format of its own. Targets in prefill: see prefill.h.
void project(const Context& context, const ProjectParams& params);

}  // namespace quantspec::cpu
