// The kernels for NEON, which every AArch64 processor has (flags: src/CMakeLists.txt).
#if defined(__aarch64__)
#include "backend/cpu/simd_neon.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kNeonKernels;
constinit const Kernels kNeonKernels = {.linear = linear_kernels(),
                                        .attention = attention_kernels()};

}  // namespace quantspec::cpu
#endif
