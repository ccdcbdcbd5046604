#include "backend/cpu/prefill.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/weight_planes.h"
#include "backend/params/segments.h"
#include "base/gemm.h"

namespace quantspec::cpu {

namespace {

constexpr int kTileColumns = 256;
constexpr int kTileSums = kSegmentLevels + 1;  // of segments that wait, and of one

constexpr int tiles(int size, int tile) { return (size + tile - 1) / tile; }

void copy_rows(const float* from, std::ptrdiff_t from_stride, int rows, int columns, float* to,
               std::ptrdiff_t to_stride) {
  for (int r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, columns, to + r * to_stride);
}

// A part of a product: rows of x by the columns of a tile, over some inputs.
struct Part {
  int first_row;
  int rows;
  int columns;
  int first_input;
  int inputs;
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
        sums_(padded_x_ + std::size_t(kTileRows) * inputs_) {}

  static std::size_t bytes(int inputs) {
    return sizeof(float) *
           (std::size_t(kTileColumns + kTileRows) * inputs + kTileSums * kTileRows * kTileColumns);
  }

  void load(const Matrix& w, int column, int columns) {
    read_weight_rows(kernels_, w, column, columns, weights_);
  }

  // Where the sums of a segment go that waits for others, [kRows, kTileColumns].
  float* sums(int level) const { return sums_ + std::size_t(level) * kRows * kTileColumns; }

  // Whether multiply() writes so many rows and columns and nothing else.
  static bool exact(int rows, int) { return rows == rows_multiplied(rows); }

  // Of a sum, [part.rows, part.columns]; what is beyond, up to all of sums(), gets some numbers.
  void multiply(const Part& part, float* y, std::ptrdiff_t stride) const {
    const int rows = rows_multiplied(part.rows);
    Gemm product = {.transpose_b = true,
                    .accumulate = false,
                    .m = rows,
                    .n = part.columns,
                    .k = part.inputs,
                    .a = x_ + std::size_t(part.first_row) * inputs_ + part.first_input,
                    .lda = inputs_,
                    .b = weights_ + part.first_input,
                    .ldb = inputs_,
                    .c = y,
                    .ldc = stride};
    if (rows != part.rows) {
      copy_rows(product.a, inputs_, part.rows, part.inputs, padded_x_, part.inputs);
      std::fill_n(padded_x_ + std::size_t(part.rows) * part.inputs,
                  std::size_t(rows - part.rows) * part.inputs, 0.0f);
      product.a = padded_x_;
      product.lda = part.inputs;
    }
    gemm(product);
  }

 private:
  static int rows_multiplied(int rows) {
    const GemmRows shape = gemm_rows();
    return std::max(shape.least, tiles(rows, shape.step) * shape.step);
  }

  const LinearKernels& kernels_;
  int inputs_;
  const float* x_;
  float* weights_;   // [kTileColumns, inputs]
  float* padded_x_;  // [kTileRows, inputs]
  float* sums_;      // [kTileSums, kTileRows, kTileColumns]
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
        sums_(elements_ + std::size_t(kTileOutputs) * inputs_),
        panels_(reinterpret_cast<std::uint16_t*>(sums(kTileSums))),
        rounded_(panels_ + std::size_t(kTileColumns) * depth_) {}

  static std::size_t bytes(int inputs) {
    const auto depth = std::size_t(panel_depth(inputs));
    return sizeof(float) * (std::size_t(kTileOutputs) * inputs + kTileSums * kRows * kTileColumns) +
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

  float* sums(int level) const { return sums_ + std::size_t(level) * kRows * kTileColumns; }

  static bool exact(int, int columns) { return columns % kTileOutputs == 0; }

  void multiply(const Part& part, float* y, std::ptrdiff_t stride) const {
    kernels_.bf16->panel_gemm(
        {.a = x_ + std::size_t(part.first_row) * row_stride(inputs_) + part.first_input,
         .a_stride = row_stride(inputs_),
         .rows = part.rows,
         .panels = panels_ + std::size_t(kTileOutputs) * part.first_input,
         .panel_stride = std::ptrdiff_t{kTileOutputs} * depth_,
         .num_panels = tiles(part.columns, kTileOutputs),
         .depth = panel_depth(part.inputs),
         .c = y,
         .c_stride = stride,
         .accumulate = false});
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
  float* sums_;             // [kTileSums, kRows, kTileColumns]
  std::uint16_t* panels_;   // [kTileColumns / kTileOutputs] panels of depth_
  std::uint16_t* rounded_;  // [kTileOutputs, inputs]
};

// --- tiles of a region ---------------------------------------------------------------------------

// Segments one after another, then as a tree: the sums are in tile.sums(0). NOTE: they begin with
// zero, not with what they are added to, so that they lose nothing to it.
template <typename Tile>
void sum_segments(const LinearKernels& kernels, const Segments& segments, const Tile& tile,
                  Part part) {
  for (int i = 0, waiting = 0; i < segments.count; ++i) {
    part.first_input = i == 0 ? 0 : segments.ends[i - 1];
    part.inputs = segments.ends[i] - part.first_input;
    if (part.inputs > 0) {
      tile.multiply(part, tile.sums(waiting), kTileColumns);
    } else {
      std::fill_n(tile.sums(waiting), part.rows * kTileColumns, 0.0f);
    }
    ++waiting;
    for (int index = i; index % 2 == 1; index /= 2) {
      --waiting;
      for (int row = 0; row < part.rows; ++row) {
        const int at = row * kTileColumns;
        kernels.add(tile.sums(waiting) + at, part.columns, tile.sums(waiting - 1) + at);
      }
    }
  }
}

template <typename Tile>
void compute_unit(const Context& context, const ProjectParams& params, const Projection& p,
                  int first_row, int last_row, int column, int columns, Tile tile) {
  const LinearKernels& kernels = context.kernels.linear;
  const Matrix& w = p.linear->target;
  const Segments segments = segments_of(*p.linear, params.weights);
  tile.load(w, column, columns);
  for (int row = first_row; row < last_row; row += Tile::kRows) {
    const int rows = std::min(Tile::kRows, last_row - row);
    const Part part = {row, rows, columns, 0, w.cols};
    float* y = p.y + std::size_t(row) * w.rows + column;
    const bool in_place = segments.count == 1 && !params.accumulate && Tile::exact(rows, columns);
    if (in_place) {
      tile.multiply(part, y, w.rows);
    } else {
      sum_segments(kernels, segments, tile, part);
    }
    const float* bias = p.linear->bias == nullptr ? nullptr : p.linear->bias + column;
    for (int r = 0; r < rows; ++r, y += w.rows) {
      const float* sums = tile.sums(0) + std::size_t(r) * kTileColumns;
      if (!in_place && !params.accumulate) std::copy_n(sums, columns, y);
      if (bias != nullptr) kernels.add(bias, columns, y);
      if (params.accumulate) kernels.add(sums, columns, y);
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
