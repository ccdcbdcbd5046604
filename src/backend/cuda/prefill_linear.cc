// A product is a GEMM on rows that were normed and rounded to the weights' dtype before, and whose
// fp32 results a small kernel finishes:
//   qkv         norm | Q, K, V | per-head norms, RoPE, append
//   add_linear  round | x += W in
//   gate_up     norm | gate, up | silu(gate) * up
// Planes are unpacked for it, some outputs at a time, to bf16: inputs of some models are beyond
// fp16.
//
// Several ranks (ranks.h) have the bits of one, by whose algorithms they multiply: of q, k, v, gate
// and up each has some outputs. Products with o and down add over all inputs, in an order of the
// library's own. So of those, too, a rank makes some outputs, with all inputs: it takes the others'
// inputs and columns of weights from their memory, and writes the part of x that is its own to
// theirs.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "backend/cuda/layout.h"
#include "backend/cuda/linear_layout.h"
#include "backend/cuda/linear_rows.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_gemm.h"
#include "backend/cuda/ranks.h"
#include "backend/cuda/ranks_kernel.h"
#include "backend/params/pass.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kMaxHeadDim = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

DType dtype_of(const Matrix& matrix) {
  return matrix.format.dense() ? matrix.format.dtype : DType::kBF16;
}
std::size_t row_bytes(const Matrix& matrix, int cols) {
  return padded_cols(cols) * size_of(dtype_of(matrix));
}

// Outputs of a product of which a rank makes some: all where there is one.
struct OwnOutputs {
  int first, count, whole;
};

// What outputs from `first` on are multiplied with, at most `most` of them: planes are unpacked so
// many at a time, whoever makes them.
struct Part {
  int count;
  PrefillGemm::Outputs as;
};
Part part_from(int first, const OwnOutputs& own, bool dense, int most) {
  const int left = std::min(own.first + own.count - first, most);
  if (dense) return {left, {own.whole, own.whole}};
  const int unpacked = first / kUnpackedRows * kUnpackedRows;
  return {std::min(left, unpacked + kUnpackedRows - first),
          {std::min(own.whole - unpacked, kUnpackedRows), own.whole}};
}

constexpr int kMostLinears = 3;

// Of what each rank has the rows of, side by side: of each share of the weights, or, from
// `first_kv` on, of the KV heads of each context.
std::array<OwnOutputs, kMostLinears> own_outputs(Device& device,
                                                 std::span<const Linear* const> linears,
                                                 int first_kv) {
  std::array<int, kMostLinears> counts{};
  std::ranges::transform(linears, counts.begin(), [](const Linear* l) { return l->outputs(); });
  std::vector shares = {counts}, contexts = {counts};
  int share = 0, context = 0;
  if (device.num_shares() > 1) {
    Ranks& ranks = *device.ranks();
    shares = ranks.told_by_shares(counts);
    share = ranks.share();
    if (first_kv < std::ssize(linears)) contexts = ranks.told_by_contexts(counts);
    context = ranks.context_index();
  }
  std::array<OwnOutputs, kMostLinears> own{};
  for (int i = 0; i < kMostLinears; ++i) {
    const auto& all = i < first_kv ? shares : contexts;
    own[i].count = counts[i];
    for (int k = 0; k < std::ssize(all); ++k) {
      if (k < (i < first_kv ? share : context)) own[i].first += all[k][i];
      own[i].whole += all[k][i];
    }
  }
  return own;
}

// What an op's products have in common: the rows of its input, and the memory between kernels.
class PrefillProducts {
 public:
  // linears: all that multiply() is going to be called with, kMostLinears at most; from `first_kv`
  // on they are of KV heads. floats: what the op wants beside.
  PrefillProducts(Device& device, const Norm& norm, const float* x, int rows,
                  std::initializer_list<const Linear*> linears, std::size_t floats = 0,
                  int first_kv = kMostLinears)
      : device_(device),
        norm_(norm),
        x_(x),
        rows_(rows),
        linears_(linears),
        own_(own_outputs(device, linears_, first_kv)) {
    std::size_t input_bytes = 0, unpacked_bytes = 0;
    for (const Linear* linear : linears) {
      const Matrix& matrix = linear->target;
      const std::size_t bytes = row_bytes(matrix, matrix.cols);
      input_bytes = std::max(input_bytes, aligned(rows * bytes));
      if (matrix.format.dense()) continue;
      const int outputs = std::min(matrix.rows, kUnpackedRows);
      unpacked_bytes = std::max(unpacked_bytes, aligned(outputs * bytes));
    }
    input_ = device.scratch(Scratch::kActivations,
                            input_bytes + unpacked_bytes + floats * sizeof(float));
    unpacked_ = input_ + input_bytes;
    floats_ = reinterpret_cast<float*>(unpacked_ + unpacked_bytes);
  }
  float* floats() const { return floats_; }

  // out = W norm(x) + bias, or out += that where `add`.
  void multiply(const Linear& linear, bool add, float* out) {
    const auto at = std::ranges::find(linears_, &linear);
    check(at != linears_.end(), "of those that the op has said");
    const OwnOutputs& own = own_.at(at - linears_.begin());
    const Matrix& matrix = linear.target;
    prepare(dtype_of(matrix), matrix.cols);
    const bool dense_weights = matrix.format.dense();
    for (int done = 0; done < own.count;) {
      const auto [count, as] = part_from(own.first + done, own, dense_weights, own.count);
      Matrix weights = matrix;
      if (!dense_weights) {
        unpack_rows(device_, matrix, done, count, unpacked_, padded_cols(matrix.cols));
        weights = dense({unpacked_, DType::kBF16, count, matrix.cols});
      }
      prefill_gemm(device_).multiply(device_, weights,
                                     linear.bias == nullptr ? nullptr : linear.bias + done, input_,
                                     rows_, add, out + done, matrix.rows, as);
      done += count;
    }
  }

 private:
  void prepare(DType dtype, int cols) {
    if (prepared_ == dtype) return;
    norm_rows(device_, dtype, norm_, x_, rows_, cols, input_);
    prepared_ = dtype;
  }

  Device& device_;
  Norm norm_;
  const float* x_;
  int rows_;
  std::vector<const Linear*> linears_;
  std::array<OwnOutputs, kMostLinears> own_;  // of each of them
  std::byte* input_;
  std::byte* unpacked_;
  float* floats_;
  std::optional<DType> prepared_;  // what input_ has
};

// --- products with columns, of several ranks -----------------------------------------------------

// What the others take of a rank, and write there.
struct Share {
  Matrix columns;
  const std::byte* inputs;  // [rows, padded_cols(columns.cols)]
  float* x;

  template <typename F>
  void for_pointers(const F& f) {
    f(columns.data), f(columns.lower), f(inputs), f(x);
  }
};

// Outputs [first, first + count) of all columns, side by side: [count, stride].
void gather_columns(Device& device, const std::vector<Share>& shares, int first, int count,
                    int stride, std::byte* out) {
  RowCopies copies{.rows = count};
  for (const Share& share : shares) {
    const Matrix& matrix = share.columns;
    if (matrix.format.dense()) {
      const std::size_t bytes = row_bytes(matrix, matrix.cols);
      copies.add({static_cast<const std::byte*>(matrix.data) + first * bytes, bytes, out,
                  stride * size_of(matrix.format.dtype), bytes});
    } else {
      unpack_rows(device, matrix, first, count, out, stride);
    }
    out += matrix.cols * size_of(dtype_of(matrix));
  }
  launch_copies(copies, device.stream());
}

// x += W in + bias. Two meetings: when all inputs are there, and nobody reads x; and when all have
// written to x, and nobody reads inputs.
void add_product_of_ranks(Device& device, const AddLinearParams& params) {
  constexpr int kUnit = 32;  // outputs of one rank, so that rows of x stay aligned
  Ranks& ranks = *device.ranks();
  const Linear& linear = *params.linear;
  const Matrix& own = linear.target;
  const DType dtype = dtype_of(own);
  const int rows = params.num_rows, outputs = linear.outputs();
  const int share = ranks.share();
  const auto begin_of = [&](int index) {
    return std::min(divide_up(outputs, kUnit) * index / ranks.num_shares() * kUnit, outputs);
  };
  const OwnOutputs made{begin_of(share), begin_of(share + 1) - begin_of(share), outputs};
  std::byte* const inputs = device.scratch(Scratch::kOfRank, rows * row_bytes(own, own.cols));
  const std::vector<Share> shares = ranks.reached_by_shares(Share{own, inputs, params.x});
  int cols = 0;
  for (const Share& share : shares) {
    check(cols % padded_cols(1) == 0, "ranks have whole groups of columns");
    cols += share.columns.cols;
  }
  const std::size_t bytes = row_bytes(own, cols), input_bytes = aligned(rows * bytes);
  std::byte* const input = device.scratch(
      Scratch::kActivations, input_bytes + std::min(made.count, kUnpackedRows) * bytes);
  std::byte* const weights = input + input_bytes;

  norm_rows(device, dtype, {}, params.in, rows, own.cols, inputs);
  ranks.meet_on_gpus();
  RowCopies inputs_of_all{.rows = rows};
  std::byte* to = input;
  for (const Share& share : shares) {
    const std::size_t part = row_bytes(own, share.columns.cols);
    inputs_of_all.add({share.inputs, part, to, bytes, part});
    to += part;
  }
  launch_copies(inputs_of_all, device.stream());
  for (int first = made.first; first < made.first + made.count;) {
    const auto [count, as] = part_from(first, made, own.format.dense(), kUnpackedRows);
    gather_columns(device, shares, first, count, padded_cols(cols), weights);
    prefill_gemm(device).multiply(device, dense({weights, dtype, count, cols}),
                                  linear.bias == nullptr ? nullptr : linear.bias + first, input,
                                  rows, true, params.x + first, outputs, as);
    first += count;
  }
  RowCopies sums{.rows = rows};
  for (int other = 0; other < ranks.num_shares(); ++other) {
    const std::size_t stride = sizeof(float) * outputs;
    if (other == share) continue;
    sums.add({params.x + made.first, stride, shares[other].x + made.first, stride,
              sizeof(float) * made.count});
  }
  launch_copies(sums, device.stream());
  ranks.meet_on_gpus();
}

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
                           2 * kv_floats, /*first_kv=*/1);
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
  if (device.num_shares() > 1) return add_product_of_ranks(device, params);
  PrefillProducts products(device, {}, params.in, params.num_rows, {params.linear});
  products.multiply(*params.linear, true, params.x);
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

// Rows in the weights' type for a GEMM, and its outputs. Where weights are unpacked, rows are of 16
// bits, for which and for the outputs row_floats suffices, and kUnpackedRows are the rest. Of
// several ranks each takes the inputs of all, and as many rows of weights; and it leaves its own.
PrefillScratch prefill_scratch(const PrefillSizes& sizes) {
  const bool alone = sizes.ranks == 1;
  const std::size_t inputs = static_cast<std::size_t>(sizes.inputs) * sizes.ranks;
  const std::size_t rows = kPrefillRows + (alone ? 0 : kUnpackedRows);
  return {.activations = sizeof(float) * (rows * inputs + sizes.row_floats),
          .of_rank = alone ? 0 : sizeof(float) * kPrefillRows * padded_cols(sizes.inputs),
          .workspace = kGemmWorkspaceBytes};
}

void reserve_prefill(Device& device, const PrefillSizes& sizes) {
  const PrefillScratch scratch = prefill_scratch(sizes);
  device.scratch(Scratch::kActivations, scratch.activations);
  device.scratch(Scratch::kOfRank, scratch.of_rank);
  device.scratch(Scratch::kWorkspace, scratch.workspace);
  prefill_gemm(device);
}

}  // namespace quantspec::cuda
