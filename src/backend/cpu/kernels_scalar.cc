// The kernels for no instruction set beyond the compiler's default (flags: src/CMakeLists.txt).
#include "backend/cpu/simd_scalar.h"
// The wrapper comes first: the kernels are written against it.
#include "backend/cpu/attention-inl.h"
#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear-inl.h"

namespace quantspec::cpu {

extern const Kernels kScalarKernels;
constinit const Kernels kScalarKernels = {.linear = linear_kernels(),
                                          .attention = attention_kernels()};

}  // namespace quantspec::cpu
