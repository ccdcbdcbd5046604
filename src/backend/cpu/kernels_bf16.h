// Kernels of products in bf16: of instruction sets that have them, beside the tables of
// kernels_linear.h. Counts are in elements. See kernels.h for what may be included here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quantspec::cpu {

// C[row][16 p + lane] = (accumulate ? C : 0) + sum over k of A[row][k] * B[p][k][lane], in fp32.
// Panels are in pairs of k: [depth / 2][16][2].
struct Bf16PanelGemm {
  const std::uint16_t* a;
  std::ptrdiff_t a_stride;  // even
  int rows;
  const std::uint16_t* panels;
  std::ptrdiff_t panel_stride;
  int num_panels;
  int depth;  // even
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;
};

struct Bf16Kernels {
  // To the nearest, ties to even; subnormals become 0.
  void (*round)(const float* in, int count, std::uint16_t* out);
  // A panel [depth][16] of fp32 in pairs, with zeros after an odd depth.
  void (*pair_panel)(const float* panel, int depth, std::uint16_t* out);
  void (*panel_gemm)(const Bf16PanelGemm&);
};

}  // namespace quantspec::cpu
