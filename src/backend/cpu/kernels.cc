#include "backend/cpu/kernels.h"

#include "backend/cpu/isa.h"

namespace quantspec::cpu {

const Kernels& kernels(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      break;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512VnniKernels;
#else
    default:
      break;
#endif
  }
  return kScalarKernels;
}

}  // namespace quantspec::cpu
