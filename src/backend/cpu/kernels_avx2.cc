// The kernels for AVX2, FMA and F16C (flags: src/CMakeLists.txt).
#if defined(__x86_64__)
#include "backend/cpu/simd_avx2.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kAvx2Kernels;
constinit const Kernels kAvx2Kernels = {.linear = linear_kernels(),
                                        .attention = attention_kernels()};

}  // namespace quantspec::cpu
#endif
