// Kernels of products in bf16: of instruction sets that have them, beside the tables of
// kernels_linear.h. Counts are in elements. See kernels.h for what may be included here.
#pragma once

#include <cstdint>

namespace quantspec::cpu {

struct Bf16Kernels {
  // To the nearest, ties to even; subnormals become 0.
  void (*round)(const float* in, int count, std::uint16_t* out);
};

}  // namespace quantspec::cpu
