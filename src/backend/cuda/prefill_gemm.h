// The matrix products of prefill, through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>

#include "backend/params.h"

namespace quantspec::cuda {

class Device;

// One per Device. Errors: kDevice, naming the call and the shape.
class PrefillGemm {
 public:
  PrefillGemm();
  ~PrefillGemm();
  PrefillGemm(const PrefillGemm&) = delete;
  PrefillGemm& operator=(const PrefillGemm&) = delete;

  // out = x W^T + bias, or out += where `add`; fp32 sums.
  // x: [rows, padded_cols(inputs)] of the weights' dtype, zeros beyond `inputs`, 16-byte aligned.
  // out: fp32 [rows, outputs].
  void multiply(Device& device, const Linear& linear, const void* x, int rows, bool add,
                float* out);

 private:
  // What an algorithm was chosen for.
  struct Shape {
    DType dtype;
    int rows, inputs, outputs;
    bool add, bias;
    unsigned alignment;  // of out, in bytes
    auto operator<=>(const Shape&) const = default;
  };
  struct Problem;

  const cublasLtMatmulAlgo_t& algorithm(const Shape& shape, Problem& problem);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

// The device's, made at the first call.
PrefillGemm& prefill_gemm(Device& device);

}  // namespace quantspec::cuda
