#include "backend/cpu/prefill.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/weight_planes.h"
#include "base/gemm.h"

namespace quantspec::cpu {

namespace {

constexpr int kTileColumns = 256;

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

// What a unit of work multiplies: so many rows by a tile of so many columns.
struct Cut {
  int rows;
  int columns;
};

int columns_in(const ProjectParams& params, int columns) {
  int count = 0;
  for (const Projection& p : params.projections) count += tiles(p.linear->outputs(), columns);
  return count;
}

// --- fp32 ----------------------------------------------------------------------------------------

constexpr int kTileRows = kGemmMostRows;

// All rows, if there are tiles enough for all threads.
Cut fp32_cut(const Context& context, const ProjectParams& params) {
  constexpr int kUnitsPerThread = 4;
  const int column_tiles = columns_in(params, kTileColumns);
  const int row_tiles = tiles(params.rows, kTileRows);
  const int wanted = tiles(kUnitsPerThread * context.pool.num_threads(), column_tiles);
  return {tiles(row_tiles, std::min(wanted, row_tiles)) * kTileRows, kTileColumns};
}

// One thread's tile of weights, and what it multiplies by it.
class Fp32Tile {
 public:
  static constexpr int kRows = kTileRows;

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

constexpr int kLeastColumns = 64;
// What the rows cost that a unit fetches from a far cache, in columns: thought, not measured.
constexpr int kFetchColumns = 32;
constexpr int kRowStep = 32;  // that AMX multiplies at once
constexpr int kColumnStep = 2 * kTileOutputs;
static_assert(kTileColumns % kColumnStep == 0 && kLeastColumns % kColumnStep == 0);

int panel_depth(int inputs) { return tiles(inputs, kPanelDepth) * kPanelDepth; }
// From row to row: an odd number of cache lines, so that the rows of a tile lie in different sets.
int row_stride(int inputs) { return (tiles(inputs, kPanelDepth) | 1) * kPanelDepth; }

// Columns such that the busiest thread has least to do. All rows, for every unit makes its panels
// anew, if there are units for all threads.
Cut bf16_cut(const Context& context, const ProjectParams& params) {
  const int threads = context.pool.num_threads();
  int columns = kTileColumns, least = std::numeric_limits<int>::max();
  for (int size = kTileColumns; size >= kLeastColumns; size -= kColumnStep) {
    const int cost = tiles(columns_in(params, size), threads) * (size + kFetchColumns);
    if (cost >= least) continue;
    least = cost;
    columns = size;
  }
  const int blocks = tiles(threads, columns_in(params, columns));
  return {tiles(tiles(params.rows, blocks), kRowStep) * kRowStep, columns};
}

// All rows of a region, rounded, with zeros up to row_stride().
const std::uint16_t* round_rows(const Context& context, const ProjectParams& params) {
  const int inputs = params.projections[0].linear->inputs();
  const auto stride = std::size_t(row_stride(inputs));
  auto* x = context.scratch.get<std::uint16_t>(Scratch::kRounded, params.rows * stride);
  for_rows(context.pool, params.rows, [&](int row) {
    std::uint16_t* to = x + row * stride;
    context.kernels.bf16->round(params.x + std::size_t(row) * inputs, inputs, to);
    std::fill(to + inputs, to + stride, std::uint16_t{0});
  });
  return x;
}

// One thread's tile of weights in panels, and what it multiplies by them.
class Bf16Tile {
 public:
  static constexpr int kRows = 256;

  Bf16Tile(const Context& context, const ProjectParams& params, const std::uint16_t* x, int thread)
      : kernels_(context.kernels),
        inputs_(params.projections[0].linear->inputs()),
        depth_(panel_depth(inputs_)),
        x_(x),
        elements_(context.scratch.get_for_thread<float>(thread, bytes(inputs_) / sizeof(float))),
        y_(elements_ + std::size_t(kTileOutputs) * inputs_),
        panels_(reinterpret_cast<std::uint16_t*>(y_ + kRows * kTileColumns)),
        rounded_(panels_ + std::size_t(kTileColumns) * depth_) {}

  static std::size_t bytes(int inputs) {
    const auto depth = std::size_t(panel_depth(inputs));
    return sizeof(float) * (std::size_t(kTileOutputs) * inputs + kRows * kTileColumns) +
           sizeof(std::uint16_t) * (kTileColumns + kTileOutputs) * depth;
  }

  void load(const Matrix& w, int column, int columns) {
    for (int done = 0; done < columns; done += kTileOutputs) {
      std::uint16_t* panel = panels_ + std::size_t(done) * depth_;
      if (!w.format.dense()) {
        read_weight_panel(*kernels_.bf16, w, column + done, panel);
        continue;
      }
      const int count = std::min(kTileOutputs, columns - done);
      kernels_.bf16->pair_rows(rounded_rows(w, column + done, count), count, inputs_, panel);
    }
  }

  // NOTE: sums begin with zero, not with what they are added to, so that they lose nothing to it.
  void multiply(int first_row, const Output& out) const {
    const bool in_place = !out.accumulate && out.columns % kTileOutputs == 0;
    kernels_.bf16->panel_gemm({.a = x_ + std::size_t(first_row) * row_stride(inputs_),
                               .a_stride = row_stride(inputs_),
                               .rows = out.rows,
                               .panels = panels_,
                               .panel_stride = std::ptrdiff_t{kTileOutputs} * depth_,
                               .num_panels = tiles(out.columns, kTileOutputs),
                               .depth = depth_,
                               .c = in_place ? out.y : y_,
                               .c_stride = in_place ? out.stride : kTileColumns,
                               .accumulate = false});
    if (in_place) return;
    if (!out.accumulate) {
      return copy_rows(y_, kTileColumns, out.rows, out.columns, out.y, out.stride);
    }
    for (int r = 0; r < out.rows; ++r) {
      kernels_.linear.add(y_ + r * kTileColumns, out.columns, out.y + r * out.stride);
    }
  }

 private:
  const std::uint16_t* rounded_rows(const Matrix& w, int first, int count) {
    const std::size_t offset = std::size_t(first) * inputs_;
    if (w.format.dtype == DType::kBF16) return static_cast<const std::uint16_t*>(w.data) + offset;
    read_weight_rows(kernels_.linear, w, first, count, elements_);
    kernels_.bf16->round(elements_, count * inputs_, rounded_);
    return rounded_;
  }

  const Kernels& kernels_;
  int inputs_;
  int depth_;
  const std::uint16_t* x_;
  float* elements_;         // [kTileOutputs, inputs]
  float* y_;                // [kRows, kTileColumns]
  std::uint16_t* panels_;   // [kTileColumns / kTileOutputs] panels of depth_
  std::uint16_t* rounded_;  // [kTileOutputs, inputs]
};

// --- tiles of a region ---------------------------------------------------------------------------

template <typename Tile>
void compute_unit(const Context& context, const ProjectParams& params, const Projection& p,
                  int first_row, int last_row, int column, int columns, Tile tile) {
  const int outputs = p.linear->outputs();
  tile.load(p.linear->target, column, columns);
  for (int row = first_row; row < last_row; row += Tile::kRows) {
    const int rows = std::min(Tile::kRows, last_row - row);
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
void compute(const Context& context, const ProjectParams& params, const Cut& cut,
             const F& make_tile) {
  const int blocks = tiles(params.rows, cut.rows);
  context.pool.parallel_for(
      std::int64_t{columns_in(params, cut.columns)} * blocks, [&](std::int64_t index, int thread) {
        const int first = static_cast<int>(index % blocks) * cut.rows;
        int tile = static_cast<int>(index / blocks);
        const Projection* p = params.projections.data();
        for (int count; tile >= (count = tiles(p->linear->outputs(), cut.columns)); ++p) {
          tile -= count;
        }
        const int column = tile * cut.columns;
        compute_unit(context, params, *p, first, std::min(params.rows, first + cut.rows), column,
                     std::min(cut.columns, p->linear->outputs() - column), make_tile(thread));
      });
}

}  // namespace

std::size_t prefill_bytes(const Kernels& kernels, int threads, int rows, int inputs) {
  if (kernels.bf16 == nullptr) return threads * Fp32Tile::bytes(inputs);
  return threads * Bf16Tile::bytes(inputs) +
         sizeof(std::uint16_t) * std::size_t(rows) * row_stride(inputs);
}

void project_prefill(const Context& context, const ProjectParams& params) {
  if (context.kernels.bf16 == nullptr) {
    compute(context, params, fp32_cut(context, params),
            [&](int thread) { return Fp32Tile(context, params, thread); });
  } else {
    const std::uint16_t* x = round_rows(context, params);
    compute(context, params, bf16_cut(context, params),
            [&](int thread) { return Bf16Tile(context, params, x, thread); });
  }
}

}  // namespace quantspec::cpu
