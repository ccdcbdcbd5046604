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
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512VnniKernels;
#elif defined(__aarch64__)
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
