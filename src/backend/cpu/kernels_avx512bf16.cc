// What AVX-512 BF16 adds to AVX-512 VNNI (flags: src/CMakeLists.txt).
#if defined(__x86_64__)
#include "backend/cpu/simd_avx512.h"
// The wrapper comes first: it keeps the compiler's own headers quiet.
#include "backend/cpu/kernels.h"
#include "backend/cpu/panels_bf16-inl.h"

namespace quantspec::cpu {
namespace {

void round(const float* in, int count, std::uint16_t* out) {
  for (int i = 0; i < count; i += 2 * kLanes) {
    const auto lanes = [&](int first) {
      return count - first >= kLanes ? load(in + first) : load_n(in + first, count - first);
    };
    const F32 low = lanes(i), high = i + kLanes < count ? lanes(i + kLanes) : zero_f32();
    const auto mask = count - i >= 2 * kLanes ? ~__mmask32{0} : (__mmask32{1} << (count - i)) - 1;
    _mm512_mask_storeu_epi16(out + i, mask,
                             reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v)));
  }
}

// Two panels of so much depth stay in the nearest cache while all rows meet them.
constexpr int kBlockDepth = 512;

template <int kRows, int kPanels>
__attribute__((noinline)) void gemm_tile(const Bf16PanelGemm& g, int row, int panel) {
  const std::uint16_t* a = g.a + row * g.a_stride;
  const std::uint16_t* b = g.panels + panel * g.panel_stride;
  float* c = g.c + row * g.c_stride + 16 * panel;
  __m512 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      sum[r][p] = g.accumulate ? _mm512_loadu_ps(c + r * g.c_stride + 16 * p) : _mm512_setzero_ps();
    }
  }
  for (int k = 0; k < g.depth; k += 2) {
    __m512i columns[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      columns[p] = _mm512_loadu_si512(b + p * g.panel_stride + 16 * k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * g.a_stride + k, sizeof(pair));
      const auto factors = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p] = _mm512_dpbf16_ps(sum[r][p], factors, reinterpret_cast<__m512bh>(columns[p]));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      _mm512_storeu_ps(c + r * g.c_stride + 16 * p, sum[r][p]);
    }
  }
}

// Rows from `row` on of kPanels panels in tiles of kRows, what is left in smaller ones.
template <int kRows, int kPanels>
void gemm_rows(const Bf16PanelGemm& g, int row, int panel) {
  for (; row + kRows <= g.rows; row += kRows) gemm_tile<kRows, kPanels>(g, row, panel);
  if constexpr (kRows > 1) {
    if (row < g.rows) gemm_rows<kRows / 2, kPanels>(g, row, panel);
  }
}

void panel_gemm(const Bf16PanelGemm& g) {
  for_depths(g, kBlockDepth, [](const Bf16PanelGemm& part) {
    int panel = 0;
    for (; panel + 2 <= part.num_panels; panel += 2) gemm_rows<8, 2>(part, 0, panel);
    for (; panel < part.num_panels; ++panel) gemm_rows<8, 1>(part, 0, panel);
  });
}

}  // namespace

extern const Bf16Kernels kAvx512Bf16Kernels;
constinit const Bf16Kernels kAvx512Bf16Kernels = {.round = round,
                                                  .pair_panel = pair_panel,
                                                  .pair_rows = pair_rows,
                                                  .unpack_panel = unpack_panel,
                                                  .panel_gemm = panel_gemm};

}  // namespace quantspec::cpu
#endif
