// Phase::kDecode: an op is one launch where its matrices are of one format that has kernels for it.
// Otherwise each matrix is multiplied by itself, with the kernel of its format, and small kernels
// finish what comes of it. Which way follows from the formats alone, so that a row's bits do.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "backend/cuda/layout.h"
#include "backend/cuda/linear_rows.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/products.h"
#include "backend/params/pass.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

bool in_one_launch(WeightRead read, std::initializer_list<const Linear*> linears) {
  const WeightFormat& format = matrix_of(**linears.begin(), read).format;
  return has_tile_kernels(format) && std::ranges::all_of(linears, [&](const Linear* linear) {
           return matrix_of(*linear, read).format == format;
         });
}

// Products of the same rows, one after another.
class Products {
 public:
  // floats: what the op wants beside.
  Products(Device& device, WeightRead read, const Norm& norm, const float* x, int rows, int cols,
           OpOrder order, std::size_t floats = 0)
      : device_(device), read_(read), norm_(norm), x_(x), rows_(rows), cols_(cols), order_(order) {
    const std::size_t input_floats = static_cast<std::size_t>(rows) * padded_cols(cols);
    std::byte* const scratch =
        device.scratch(Scratch::kActivations, sizeof(float) * (input_floats + floats));
    input_ = reinterpret_cast<float*>(scratch);
    floats_ = input_ + input_floats;
  }
  float* floats() const { return floats_; }

  // out = W norm(x) + bias
  void store(const Linear& linear, float* out) {
    if (has_tile_kernels(matrix_of(linear, read_).format)) {
      return tile_head(device_, {read_, x_, rows_, norm_, &linear, out, next_order()});
    }
    multiply(linear, false, out);
  }
  // out += W norm(x) + bias. REQUIRES: a matrix of codes
  void add(const Linear& linear, float* out) { multiply(linear, true, out); }

 private:
  void multiply(const Linear& linear, bool add, float* out) {
    check(readable(linear, read_), "a pass reads weight planes that were not made");
    next_order();
    if (!prepared_) {
      norm_rows(device_, DType::kF32, norm_, x_, rows_, cols_,
                reinterpret_cast<std::byte*>(input_));
    }
    prepared_ = true;
    multiply_codes(device_, matrix_of(linear, read_), read_, linear.bias, input_, rows_, add, out);
  }
  // Of the op's first launch, then of others, as in OpLaunches.
  OpOrder next_order() { return std::exchange(order_, OpOrder::kOverlaps); }

  Device& device_;
  WeightRead read_;
  Norm norm_;
  const float* x_;
  int rows_, cols_;
  OpOrder order_;
  float* input_;  // norm(x) as multiply_codes() wants it
  float* floats_;
  bool prepared_ = false;
};

}  // namespace

void decode_qkv(Device& device, const QkvParams& params) {
  const KvShape& shape = params.shape;
  check(shape.head_dim % 16 == 0 && shape.head_dim <= 256,
        "head_dim is a multiple of 16 up to 256");
  if (in_one_launch(params.weights, {params.q, params.k, params.v})) {
    return tile_qkv(device, params);
  }
  const std::size_t kv_floats = static_cast<std::size_t>(params.num_rows) * params.k->outputs();
  Products products(device, params.weights, params.norm, params.x, params.num_rows,
                    params.k->inputs(), params.order, 2 * kv_floats);
  if (params.q_out != nullptr) {
    products.store(*params.q, params.q_out);
    finish_queries(device, params);
  }
  if (params.sequences.empty()) return;
  float *const k = products.floats(), *const v = k + kv_floats;
  products.store(*params.k, k);
  products.store(*params.v, v);
  append_by_tables(device, params, k, v);
}

void decode_add_linear(Device& device, const AddLinearParams& params) {
  if (in_one_launch(params.weights, {params.linear})) return tile_add_linear(device, params);
  Products(device, params.weights, {}, params.in, params.num_rows, params.linear->inputs(),
           params.order)
      .add(*params.linear, params.x);
}

void decode_gate_up(Device& device, const GateUpParams& params) {
  if (in_one_launch(params.weights, {params.gate, params.up})) return tile_gate_up(device, params);
  const std::size_t count = static_cast<std::size_t>(params.num_rows) * params.gate->outputs();
  Products products(device, params.weights, params.norm, params.x, params.num_rows,
                    params.gate->inputs(), params.order, count);
  float* const up = products.floats();
  products.store(*params.gate, params.out);
  products.store(*params.up, up);
  silu_times(device, count, params.out, up);
}

void head(Device& device, const HeadParams& params) {
  if (in_one_launch(params.weights, {params.head})) return tile_head(device, params);
  Products(device, params.weights, params.norm, params.x, params.num_rows, params.head->inputs(),
           params.order)
      .store(*params.head, params.logits);
}

}  // namespace quantspec::cuda
