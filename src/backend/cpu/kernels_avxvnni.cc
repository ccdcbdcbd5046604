// The kernels for AVX2 with AVX-VNNI: processors that have VNNI but not AVX-512 (flags:
// src/CMakeLists.txt).
#if defined(__x86_64__)
#include "backend/cpu/simd_avx2.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kAvxVnniKernels;
constinit const Kernels kAvxVnniKernels = {.linear = linear_kernels(),
                                           .attention = attention_kernels()};

}  // namespace quantspec::cpu
#endif
