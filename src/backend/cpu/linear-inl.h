// The table of LinearKernels over the wrapper that was included before. Included by kernels_*.cc.
#pragma once

#include "backend/cpu/gemv-inl.h"
#include "backend/cpu/planes-inl.h"
#include "backend/cpu/prefill-inl.h"
#include "backend/cpu/quantize-inl.h"
#include "backend/cpu/unpack-inl.h"
#include "quant/fit-inl.h"

namespace quantspec::cpu {
namespace {

constexpr LinearKernels linear_kernels() {
  return {
      .full_gemv = {full_gemv<F32Elements>, full_gemv<F16Elements>, full_gemv<Bf16Elements>},
      .arrange = {arrange<F32Elements>, arrange<F16Elements>, arrange<Bf16Elements>},
      .to_f32 = {to_f32<F32Elements>, to_f32<F16Elements>, to_f32<Bf16Elements>},
      .to_f16 = to_f16,
      .rms_norm = rms_norm,
      .rope = rope,
      .silu_mul = silu_mul,
      .scale = scale_row,
      .add = add_row,
      .quantize_row = quantize_row,
      .plane_gemv = plane_gemv,
      .unpack_planes = unpack_planes,
      .encode = {fit_groups, encode_codes},
      .panel_gemm = panel_gemm,
      .value_panels = value_panels,
      .softmax_step = softmax_step,
  };
}

}  // namespace
}  // namespace quantspec::cpu
