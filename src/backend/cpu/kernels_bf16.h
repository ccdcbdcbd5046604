// Kernels of products in bf16: of instruction sets that have them, beside the tables of
// kernels_linear.h. Counts are in elements. See kernels.h for what may be included here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels_linear.h"

namespace quantspec::cpu {

// A panel is 16 columns of what rows are multiplied by, in pairs of k: [depth / 2][16][2]. Those of
// weights have zeros up to a multiple of this.
inline constexpr int kPanelDepth = 32;

// C[row][16 p + lane] = (accumulate ? C : 0) + sum over k of A[row][k] * B[p][k][lane], in fp32.
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

// A product in parts of so much depth, one after another. NOTE: without a name, for files that
// include this are compiled for several instruction sets.
namespace {
template <typename F>
[[maybe_unused]] void for_depths(const Bf16PanelGemm& g, int most, const F& multiply) {
  for (int first = 0; first < g.depth; first += most) {
    Bf16PanelGemm part = g;
    part.a += first;
    part.panels += 16 * first;
    part.depth = g.depth - first < most ? g.depth - first : most;
    part.accumulate = g.accumulate || first > 0;
    multiply(part);
  }
}
}  // namespace

using Bf16PanelGemmKernel = void (*)(const Bf16PanelGemm&);

// All 16 outputs of a block of planes; the rest is as in PlaneUnpack.
struct PlanePanel {
  PlaneFormat format;
  const std::byte* upper;
  const std::byte* lower;
  float unit;
  int zero;
  int inputs;
};

struct Bf16Kernels {
  // To the nearest, ties to even; subnormals become 0.
  void (*round)(const float* in, int count, std::uint16_t* out);
  // A panel [depth][16] of fp32 in pairs, with zeros after an odd depth.
  void (*pair_panel)(const float* panel, int depth, std::uint16_t* out);
  // Weights as panels: of up to 16 rows of bf16 [count, inputs] at any address, and of planes.
  void (*pair_rows)(const std::uint16_t* rows, int count, int inputs, std::uint16_t* out);
  void (*unpack_panel)(const PlanePanel&, std::uint16_t* out);
  Bf16PanelGemmKernel panel_gemm;
};

}  // namespace quantspec::cpu
