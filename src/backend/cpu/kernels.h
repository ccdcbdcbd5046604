// The kernels of one instruction set: a table of functions, filled by kernels_<isa>.cc. The kernels
// are written once, in the *-inl.h files, over the 16-lane wrappers simd_*.h.
//
// Everything here is included by translation units compiled for an instruction set, so it may use
// no std template (see simd_scalar.h).
#pragma once

#include "backend/cpu/kernels_attention.h"
#include "backend/cpu/kernels_bf16.h"
#include "backend/cpu/kernels_linear.h"

namespace quantspec::cpu {

struct Kernels {
  LinearKernels linear;
  AttentionKernels attention;
  const Bf16Kernels* bf16 = nullptr;  // null: products of prompts are in fp32
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VnniKernels;
extern const Bf16Kernels kAvx512Bf16Kernels;
extern const Bf16PanelGemmKernel kAmxPanelGemm;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
extern const Kernels kNeonDotKernels;
extern const Kernels kNeonI8mmKernels;
#endif

enum class Isa;
// REQUIRES: this machine can run it.
const Kernels& kernels(Isa isa);

}  // namespace quantspec::cpu
