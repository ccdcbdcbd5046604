// The kernels for AVX-512 with VNNI (flags: src/CMakeLists.txt).
#if defined(__x86_64__)
#include "backend/cpu/simd_avx512.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kAvx512VnniKernels;
constinit const Kernels kAvx512VnniKernels = {.linear = linear_kernels(),
                                              .attention = attention_kernels()};

}  // namespace quantspec::cpu
#endif
