#include "backend/cpu/kernels.h"

#include "backend/cpu/isa.h"

namespace quantspec::cpu {

const Kernels& kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvxVnni:
      return kAvxVnniKernels;
#endif
#if defined(__x86_64__) && !defined(QUANTSPEC_NO_AVX512)
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512VnniKernels;
    case Isa::kAvx512Bf16: {
      static const Kernels with_bf16 = {.linear = kAvx512VnniKernels.linear,
                                        .attention = kAvx512VnniKernels.attention,
                                        .bf16 = &kAvx512Bf16Kernels};
      return with_bf16;
    }
    case Isa::kAmxBf16: {
      static const Bf16Kernels bf16 = [] {
        Bf16Kernels all = kAvx512Bf16Kernels;
        all.panel_gemm = kAmxPanelGemm;
        return all;
      }();
      static const Kernels with_amx = {.linear = kAvx512VnniKernels.linear,
                                       .attention = kAvx512VnniKernels.attention,
                                       .bf16 = &bf16};
      return with_amx;
    }
#endif
#if defined(__aarch64__)
    case Isa::kNeon:
      return kNeonKernels;
    case Isa::kNeonDot:
      return kNeonDotKernels;
    case Isa::kNeonI8mm:
      return kNeonI8mmKernels;
#endif
    default:
      break;
  }
  return kScalarKernels;
}

}  // namespace quantspec::cpu
