// The matrix products of prefill, through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>

#include "backend/params/linear.h"

namespace quantspec::cuda {

class Device;

// A row's bits depend on its index alone, not on the number of rows: the algorithm is chosen for
// the matrix, with its tiles and its split of the inputs, and is the same for any number of rows.
//
// One per Device. Errors: kDevice, naming the call and the shape.
class PrefillGemm {
 public:
  PrefillGemm();
  ~PrefillGemm();
  PrefillGemm(const PrefillGemm&) = delete;
  PrefillGemm& operator=(const PrefillGemm&) = delete;

  // What an algorithm is chosen for, beside dtype, inputs, and what is added.
  struct Outputs {
    int count, stride;  // stride: from row to row of out
    auto operator<=>(const Outputs&) const = default;
  };

  // out = x W^T + bias, or out += where `add`; fp32 sums. bias may be null.
  // weights: of elements. x: [rows, padded_cols(inputs)] of their dtype, zeros beyond `inputs`,
  // 16-byte aligned. out: fp32 [rows, outputs], rows out_stride apart, aligned as they are to each
  // other, up to 128 bytes. as: where the weights are some rows of a matrix, what that one's
  // outputs would be: each output has the bits of there.
  void multiply(Device& device, const Matrix& weights, const float* bias, const void* x, int rows,
                bool add, float* out, int out_stride, const Outputs& as);

 private:
  struct Shape {
    DType dtype;
    int inputs;
    Outputs outputs;
    bool add, bias;
    auto operator<=>(const Shape&) const = default;
  };
  struct Problem;

  const cublasLtMatmulAlgo_t& algorithm(const Shape& shape, const float* bias);
  bool takes_any_rows(const Shape& shape, const float* bias, const cublasLtMatmulAlgo_t& algorithm);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

// The device's, made at the first call.
PrefillGemm& prefill_gemm(Device& device);
// The memory that its products work in, of Scratch::kWorkspace: what cuBLAS asks for on 9.0.
inline constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;

}  // namespace quantspec::cuda
