// Pieces of prefill attention: small fp32 matrix products on panels of 16 columns, and the online
// softmax. Included by kernels_*.cc after one simd_*.h.
#pragma once

#include "backend/cpu/elementwise-inl.h"

namespace quantspec::cpu {
namespace {

constexpr int kGemmRows = kRegisters >= 32 ? 8 : 2;
constexpr int kGemmPanels = 2;

template <int kRows, int kPanels>
__attribute__((noinline)) void gemm_tile(const float* a, std::ptrdiff_t a_stride, const float* b,
                                         std::ptrdiff_t panel_stride, int depth, float* c,
                                         std::ptrdiff_t c_stride, bool accumulate) {
  F32 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      sum[r][p] = accumulate ? load(c + r * c_stride + 16 * p) : zero_f32();
    }
  }
  for (int k = 0; k < depth; ++k) {
    F32 columns[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) columns[p] = load(b + p * panel_stride + 16 * k);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 factor = set1(a[r * a_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sum[r][p] = fma(factor, columns[p], sum[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) store(c + r * c_stride + 16 * p, sum[r][p]);
  }
}

// Rows [row, g.rows) of kPanels panels in tiles of kRows, what is left in smaller ones.
template <int kRows, int kPanels>
void gemm_rows(const PanelGemm& g, int panel, int row) {
  const float* b = g.panels + panel * g.panel_stride;
  for (; row + kRows <= g.rows; row += kRows) {
    gemm_tile<kRows, kPanels>(g.a + row * g.a_stride, g.a_stride, b, g.panel_stride, g.depth,
                              g.c + row * g.c_stride + 16 * panel, g.c_stride, g.accumulate);
  }
  if constexpr (kRows > 1) {
    if (row < g.rows) gemm_rows<kRows / 2, kPanels>(g, panel, row);
  }
}

void panel_gemm(const PanelGemm& g) {
  int panel = 0;
  for (; panel + kGemmPanels <= g.num_panels; panel += kGemmPanels) {
    gemm_rows<kGemmRows, kGemmPanels>(g, panel, 0);
  }
  for (; panel < g.num_panels; ++panel) gemm_rows<kGemmRows, 1>(g, panel, 0);
}

void value_panels(const std::uint16_t* values, int tokens, int dim, int panel_tokens,
                  float* panels) {
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < dim; c += kLanes) {
      store(panels + static_cast<std::ptrdiff_t>(c) * panel_tokens + 16 * t,
            load_f16(values + static_cast<std::ptrdiff_t>(t) * dim + c));
    }
  }
}

float softmax_step(float* scores, int visible, int width, float* max_inout, float* sum_inout) {
  float most = *max_inout;
  int i = 0;
  F32 lanes = set1(most);
  for (; i + kLanes <= visible; i += kLanes) lanes = max(lanes, load(scores + i));
  most = reduce_max(lanes);
  for (; i < visible; ++i) most = scores[i] > most ? scores[i] : most;

  F32 sum = zero_f32();
  for_lanes(visible, [&](int j, int n) {
    const F32 p = exp(load_run(scores + j, n) - set1(most));
    store_run(scores + j, p, n);
    sum = sum + load_run(scores + j, n);  // again through memory: lanes beyond n are 0
  });
  for (i = visible; i < width; ++i) scores[i] = 0.0f;

  float correction[kLanes];
  store(correction, exp(set1(*max_inout - most)));
  *max_inout = most;
  *sum_inout = *sum_inout * correction[0] + reduce_add(sum);
  return correction[0];
}

}  // namespace
}  // namespace quantspec::cpu
