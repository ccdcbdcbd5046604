// The kernels for AVX-512 F, BW, DQ and VL (flags: src/CMakeLists.txt).
#if defined(__x86_64__)
#include "backend/cpu/simd_avx512.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kAvx512Kernels;
constinit const Kernels kAvx512Kernels = {.linear = linear_kernels(),
                                          .attention = attention_kernels()};

}  // namespace quantspec::cpu
#endif
