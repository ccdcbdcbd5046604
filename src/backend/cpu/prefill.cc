#include "backend/cpu/prefill.h"

#include <algorithm>

#include "backend/cpu/weight_planes.h"
#include "base/gemm.h"

namespace quantspec::cpu {

namespace {

constexpr int kTileRows = kGemmMostRows;
constexpr int kTileColumns = 256;
constexpr int kUnitsPerThread = 4;

constexpr int tiles(int size, int tile) { return (size + tile - 1) / tile; }

void copy_rows(const float* from, std::ptrdiff_t from_stride, int rows, int columns, float* to,
               std::ptrdiff_t to_stride) {
  for (int r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, columns, to + r * to_stride);
}

// A tile of results.
struct Output {
  float* y;
  std::ptrdiff_t stride;
  int rows;
  int columns;
  bool accumulate;
};

// --- fp32 ----------------------------------------------------------------------------------------

// One thread's tile of weights, and what it multiplies by it.
class Fp32Tile {
 public:
  Fp32Tile(const Context& context, const ProjectParams& params, int thread)
      : kernels_(context.kernels.linear),
        inputs_(params.projections[0].linear->inputs()),
        x_(params.x),
        weights_(context.scratch.get_for_thread<float>(thread, bytes(inputs_) / sizeof(float))),
        padded_x_(weights_ + std::size_t(kTileColumns) * inputs_),
        padded_y_(padded_x_ + std::size_t(kTileRows) * inputs_) {}

  static std::size_t bytes(int inputs) {
    return sizeof(float) *
           (std::size_t(kTileColumns + kTileRows) * inputs + kTileRows * kTileColumns);
  }

  void load(const Matrix& w, int column, int columns) {
    read_weight_rows(kernels_, w, column, columns, weights_);
  }

  void multiply(int first_row, const Output& out) const {
    const GemmRows shape = gemm_rows();
    const int rows = std::max(shape.least, tiles(out.rows, shape.step) * shape.step);
    Gemm product = {.transpose_b = true,
                    .accumulate = out.accumulate,
                    .m = out.rows,
                    .n = out.columns,
                    .k = inputs_,
                    .a = x_ + std::size_t(first_row) * inputs_,
                    .lda = inputs_,
                    .b = weights_,
                    .ldb = inputs_,
                    .c = out.y,
                    .ldc = out.stride};
    if (rows == out.rows) return gemm(product);
    copy_rows(product.a, inputs_, out.rows, inputs_, padded_x_, inputs_);
    std::fill_n(padded_x_ + std::size_t(out.rows) * inputs_, std::size_t(rows - out.rows) * inputs_,
                0.0f);
    std::fill_n(padded_y_, std::size_t(rows) * out.columns, 0.0f);
    if (out.accumulate) {
      copy_rows(out.y, out.stride, out.rows, out.columns, padded_y_, out.columns);
    }
    product.m = rows;
    product.a = padded_x_;
    product.c = padded_y_;
    product.ldc = out.columns;
    gemm(product);
    copy_rows(padded_y_, out.columns, out.rows, out.columns, out.y, out.stride);
  }

 private:
  const LinearKernels& kernels_;
  int inputs_;
  const float* x_;
  float* weights_;   // [kTileColumns, inputs]
  float* padded_x_;  // [kTileRows, inputs]
  float* padded_y_;  // [kTileRows, kTileColumns]
};

// --- bf16 ----------------------------------------------------------------------------------------

int bf16_rows(int rows) { return tiles(rows, bf16_row_step()) * bf16_row_step(); }

// All rows of a region, rounded; those that are not there are zeros.
const std::uint16_t* round_rows(const Context& context, const ProjectParams& params) {
  const auto inputs = std::size_t(params.projections[0].linear->inputs());
  const int padded = bf16_rows(params.rows);
  auto* x = context.scratch.get<std::uint16_t>(Scratch::kRounded, padded * inputs);
  for_rows(context.pool, params.rows, [&](int row) {
    context.kernels.bf16->round(params.x + row * inputs, static_cast<int>(inputs),
                                x + row * inputs);
  });
  std::fill(x + params.rows * inputs, x + padded * inputs, std::uint16_t{0});
  return x;
}

class Bf16Tile {
 public:
  Bf16Tile(const Context& context, const ProjectParams& params, const std::uint16_t* x, int thread)
      : kernels_(context.kernels),
        inputs_(params.projections[0].linear->inputs()),
        x_(x),
        elements_(context.scratch.get_for_thread<float>(thread, bytes(inputs_) / sizeof(float))),
        y_(elements_ + std::size_t(kTileOutputs) * inputs_),
        rounded_(reinterpret_cast<std::uint16_t*>(y_ + kTileRows * kTileColumns)) {}

  static std::size_t bytes(int inputs) {
    return sizeof(float) * (std::size_t(kTileOutputs) * inputs + kTileRows * kTileColumns) +
           sizeof(std::uint16_t) * std::size_t(kTileColumns) * inputs;
  }

  void load(const Matrix& w, int column, int columns) {
    if (w.format.dense() && w.format.dtype == DType::kBF16) {
      weights_ = static_cast<const std::uint16_t*>(w.data) + std::size_t(column) * inputs_;
      return;
    }
    for (int done = 0; done < columns; done += kTileOutputs) {
      const int count = std::min(kTileOutputs, columns - done);
      read_weight_rows(kernels_.linear, w, column + done, count, elements_);
      kernels_.bf16->round(elements_, count * inputs_, rounded_ + std::size_t(done) * inputs_);
    }
    weights_ = rounded_;
  }

  void multiply(int first_row, const Output& out) const {
    gemm(Bf16Gemm{.m = bf16_rows(out.rows),
                  .n = out.columns,
                  .k = inputs_,
                  .a = x_ + std::size_t(first_row) * inputs_,
                  .b = weights_,
                  .c = y_});
    if (!out.accumulate)
      return copy_rows(y_, out.columns, out.rows, out.columns, out.y, out.stride);
    for (int r = 0; r < out.rows; ++r) {
      kernels_.linear.add(y_ + std::size_t(r) * out.columns, out.columns, out.y + r * out.stride);
    }
  }

 private:
  const Kernels& kernels_;
  int inputs_;
  const std::uint16_t* x_;
  float* elements_;         // [kTileOutputs, inputs]
  float* y_;                // [kTileRows, kTileColumns]
  std::uint16_t* rounded_;  // [kTileColumns, inputs]
  const std::uint16_t* weights_ = nullptr;
};

// --- tiles of a region ---------------------------------------------------------------------------

// Rows that a unit multiplies by one tile of weights: all, if there are tiles enough for all
// threads.
int rows_per_unit(const Context& context, const ProjectParams& params, int column_tiles) {
  const int row_tiles = tiles(params.rows, kTileRows);
  const int wanted = tiles(kUnitsPerThread * context.pool.num_threads(), column_tiles);
  return tiles(row_tiles, std::min(wanted, row_tiles)) * kTileRows;
}

template <typename Tile>
void compute_unit(const Context& context, const ProjectParams& params, const Projection& p,
                  int first_row, int last_row, int column, Tile tile) {
  const int outputs = p.linear->outputs();
  const int columns = std::min(kTileColumns, outputs - column);
  tile.load(p.linear->target, column, columns);
  for (int row = first_row; row < last_row; row += kTileRows) {
    const int rows = std::min(kTileRows, last_row - row);
    float* y = p.y + std::size_t(row) * outputs + column;
    tile.multiply(row, {y, outputs, rows, columns, params.accumulate});
    if (p.linear->bias == nullptr) continue;
    for (int r = 0; r < rows; ++r) {
      context.kernels.linear.add(p.linear->bias + column, columns, y + std::size_t(r) * outputs);
    }
  }
}

// make_tile(thread): a tile to work in.
template <typename F>
void compute(const Context& context, const ProjectParams& params, const F& make_tile) {
  const auto column_tiles = [](const Projection& p) {
    return tiles(p.linear->outputs(), kTileColumns);
  };
  int all = 0;
  for (const Projection& p : params.projections) all += column_tiles(p);
  const int size = rows_per_unit(context, params, all);
  const int blocks = tiles(params.rows, size);
  context.pool.parallel_for(std::int64_t{all} * blocks, [&](std::int64_t index, int thread) {
    const int first = static_cast<int>(index % blocks) * size;
    int column = static_cast<int>(index / blocks);
    const Projection* p = params.projections.data();
    for (; column >= column_tiles(*p); ++p) column -= column_tiles(*p);
    compute_unit(context, params, *p, first, std::min(params.rows, first + size),
                 column * kTileColumns, make_tile(thread));
  });
}

}  // namespace

std::size_t prefill_bytes(const Kernels& kernels, int threads, int rows, int inputs) {
  if (kernels.bf16 == nullptr) return threads * Fp32Tile::bytes(inputs);
  return threads * Bf16Tile::bytes(inputs) +
         sizeof(std::uint16_t) * std::size_t(bf16_rows(rows)) * inputs;
}

void project_prefill(const Context& context, const ProjectParams& params) {
  if (context.kernels.bf16 == nullptr) {
    compute(context, params, [&](int thread) { return Fp32Tile(context, params, thread); });
  } else {
    const std::uint16_t* x = round_rows(context, params);
    compute(context, params, [&](int thread) { return Bf16Tile(context, params, x, thread); });
  }
}

}  // namespace quantspec::cpu
