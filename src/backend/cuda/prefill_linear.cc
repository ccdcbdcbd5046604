// A product is a GEMM on rows that were normed and rounded to the weights' dtype before, and whose
// fp32 results a small kernel finishes:
//   qkv         norm | Q, K, V | per-head norms, RoPE, append
//   add_linear  round | x += W in
//   gate_up     norm | gate, up | silu(gate) * up
// Planes are unpacked for it, some outputs at a time, to bf16: inputs of some models are beyond
// fp16.
#include <algorithm>
#include <initializer_list>
#include <optional>

#include "backend/cuda/layout.h"
#include "backend/cuda/linear_rows.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_gemm.h"
#include "backend/cuda/ranks.h"
#include "backend/params/pass.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kMaxHeadDim = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// What an op's products have in common: the rows of its input, and the memory between kernels.
class PrefillProducts {
 public:
  // linears: all that multiply() is going to be called with. floats: what the op wants beside.
  PrefillProducts(Device& device, const Norm& norm, const float* x, int rows,
                  std::initializer_list<const Linear*> linears, std::size_t floats = 0)
      : device_(device), norm_(norm), x_(x), rows_(rows) {
    std::size_t input_bytes = 0, unpacked_bytes = 0;
    for (const Linear* linear : linears) {
      const Matrix& matrix = linear->target;
      const std::size_t row_bytes = padded_cols(matrix.cols) * size_of(dtype_of(matrix));
      input_bytes = std::max(input_bytes, aligned(rows * row_bytes));
      if (matrix.format.dense()) continue;
      const int outputs = std::min(matrix.rows, kUnpackedRows);
      unpacked_bytes = std::max(unpacked_bytes, aligned(outputs * row_bytes));
    }
    input_ = device.scratch(Scratch::kActivations,
                            input_bytes + unpacked_bytes + floats * sizeof(float));
    unpacked_ = input_ + input_bytes;
    floats_ = reinterpret_cast<float*>(unpacked_ + unpacked_bytes);
  }
  float* floats() const { return floats_; }

  // out = W norm(x) + bias, or out += that where `add`.
  void multiply(const Linear& linear, bool add, float* out) {
    const Matrix& matrix = linear.target;
    prepare(dtype_of(matrix), matrix.cols);
    PrefillGemm& gemm = prefill_gemm(device_);
    if (matrix.format.dense()) {
      return gemm.multiply(device_, matrix, linear.bias, input_, rows_, add, out, matrix.rows);
    }
    for (int first = 0; first < matrix.rows; first += kUnpackedRows) {
      const int outputs = std::min(matrix.rows - first, kUnpackedRows);
      unpack_rows(device_, matrix, first, outputs, unpacked_);
      gemm.multiply(device_, dense({unpacked_, DType::kBF16, outputs, matrix.cols}),
                    linear.bias == nullptr ? nullptr : linear.bias + first, input_, rows_, add,
                    out + first, matrix.rows);
    }
  }

 private:
  static DType dtype_of(const Matrix& matrix) {
    return matrix.format.dense() ? matrix.format.dtype : DType::kBF16;
  }
  void prepare(DType dtype, int cols) {
    if (prepared_ == dtype) return;
    norm_rows(device_, dtype, norm_, x_, rows_, cols, input_);
    prepared_ = dtype;
  }

  Device& device_;
  Norm norm_;
  const float* x_;
  int rows_;
  std::byte* input_;
  std::byte* unpacked_;
  float* floats_;
  std::optional<DType> prepared_;  // what input_ has
};

void check_weights(Phase phase, WeightRead weights) {
  check(phase == Phase::kPrefill && weights == WeightRead::kTarget,
        "prefill reads weights as a target does");
}

}  // namespace

void prefill_qkv(Device& device, const QkvParams& params) {
  check_weights(params.phase, params.weights);
  check(params.shape.head_dim <= kMaxHeadDim, "a head has 256 channels at most");
  const int rows = params.num_rows;
  const std::size_t kv_floats = static_cast<std::size_t>(rows) * params.k->outputs();
  PrefillProducts products(device, params.norm, params.x, rows, {params.q, params.k, params.v},
                           2 * kv_floats);
  if (params.q_out != nullptr) {
    products.multiply(*params.q, false, params.q_out);
    finish_queries(device, params);
  }
  if (params.sequences.empty()) return;
  float *const k = products.floats(), *const v = k + kv_floats;
  products.multiply(*params.k, false, k);
  products.multiply(*params.v, false, v);
  append_sequences(device, params, k, v);
}

void prefill_add_linear(Device& device, const AddLinearParams& params) {
  check_weights(params.phase, params.weights);
  const Linear& linear = *params.linear;
  PrefillProducts products(device, {}, params.in, params.num_rows, {&linear});
  if (device.ranks() == nullptr) return products.multiply(linear, true, params.x);
  Linear columns = linear;
  columns.bias = nullptr;
  float* const sums = rank_scratch(device, params.num_rows, linear.outputs());
  products.multiply(columns, false, sums);
  device.ranks()->add_sums(sums, linear.bias, params.num_rows, linear.outputs(), params.x);
}

void prefill_gate_up(Device& device, const GateUpParams& params) {
  check_weights(params.phase, params.weights);
  const std::size_t count = static_cast<std::size_t>(params.num_rows) * params.gate->outputs();
  PrefillProducts products(device, params.norm, params.x, params.num_rows, {params.gate, params.up},
                           count);
  float* const up = products.floats();
  products.multiply(*params.gate, false, params.out);
  products.multiply(*params.up, false, up);
  silu_times(device, count, params.out, up);
}

}  // namespace quantspec::cuda
