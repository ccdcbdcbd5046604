// The kernels for NEON with DotProd and I8MM (flags: src/CMakeLists.txt).
#if defined(__aarch64__)
#include "backend/cpu/simd_neon.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kNeonI8mmKernels;
constinit const Kernels kNeonI8mmKernels = {.linear = linear_kernels(),
                                            .attention = attention_kernels()};

}  // namespace quantspec::cpu
#endif
