#include "backend/cpu/prefill.h"

#include <algorithm>

#include "backend/cpu/weight_planes.h"
#include "base/gemm.h"

namespace quantspec::cpu {

namespace {

constexpr int kTileRows = kGemmMostRows;
constexpr int kTileColumns = 256;

constexpr int tiles(int size, int tile) { return (size + tile - 1) / tile; }
// Of a product: the rows that are not there are zeros, so that no row's bits depend on them.
int padded_rows(int rows) {
  const GemmRows shape = gemm_rows();
  return std::max(shape.least, tiles(rows, shape.step) * shape.step);
}

// What a thread works in.
struct Workspace {
  float* weights;  // [kTileColumns, inputs]
  float* x;        // [kTileRows, inputs], of a tile with padding
  float* y;        // [kTileRows, kTileColumns], of the same

  Workspace(const Context& context, int thread, std::size_t inputs)
      : weights(context.scratch.get_for_thread<float>(
            thread, prefill_tile_bytes(static_cast<int>(inputs)) / sizeof(float))),
        x(weights + kTileColumns * inputs),
        y(x + kTileRows * inputs) {}
};

void copy_rows(const float* from, std::ptrdiff_t from_stride, int rows, int columns, float* to,
               std::ptrdiff_t to_stride) {
  for (int r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, columns, to + r * to_stride);
}

// The same product with rows of zeros after those of `g`.
void gemm_padded(Gemm g, int rows, const Workspace& work) {
  const int given = g.m;
  float* const out = g.c;
  const std::ptrdiff_t out_stride = g.ldc;
  copy_rows(g.a, g.lda, given, g.k, work.x, g.k);
  std::fill_n(work.x + static_cast<std::size_t>(given) * g.k,
              static_cast<std::size_t>(rows - given) * g.k, 0.0f);
  std::fill_n(work.y, static_cast<std::size_t>(rows) * g.n, 0.0f);
  if (g.accumulate) copy_rows(out, out_stride, given, g.n, work.y, g.n);
  g.m = rows;
  g.a = work.x;
  g.lda = g.k;
  g.c = work.y;
  g.ldc = g.n;
  gemm(g);
  copy_rows(work.y, g.n, given, g.n, out, out_stride);
}

void compute_tile(const Context& context, const ProjectParams& params, const Projection& p, int row,
                  int column, int thread) {
  const Matrix& w = p.linear->target;
  const int rows = std::min(kTileRows, params.rows - row);
  const int columns = std::min(kTileColumns, w.rows - column);
  const Workspace work(context, thread, w.cols);
  read_weight_rows(context.kernels.linear, w, column, columns, work.weights);

  const std::ptrdiff_t stride = w.rows;
  float* y = p.y + row * stride + column;
  const Gemm product = {.transpose_b = true,
                        .accumulate = params.accumulate,
                        .m = rows,
                        .n = columns,
                        .k = w.cols,
                        .a = params.x + static_cast<std::size_t>(row) * w.cols,
                        .lda = w.cols,
                        .b = work.weights,
                        .ldb = w.cols,
                        .c = y,
                        .ldc = stride};
  if (const int padded = padded_rows(rows); padded > rows) {
    gemm_padded(product, padded, work);
  } else {
    gemm(product);
  }
  if (p.linear->bias == nullptr) return;
  for (int r = 0; r < rows; ++r) {
    context.kernels.linear.add(p.linear->bias + column, columns, y + r * stride);
  }
}

}  // namespace

std::size_t prefill_tile_bytes(int inputs) {
  return sizeof(float) *
         ((kTileColumns + kTileRows) * static_cast<std::size_t>(inputs) + kTileRows * kTileColumns);
}

void project_prefill(const Context& context, const ProjectParams& params) {
  const int row_tiles = tiles(params.rows, kTileRows);
  const auto tiles_of = [&](const Projection& p) {
    return tiles(p.linear->outputs(), kTileColumns) * row_tiles;
  };
  int units = 0;
  for (const Projection& p : params.projections) units += tiles_of(p);
  context.pool.parallel_for(units, [&](std::int64_t index, int thread) {
    const Projection* p = params.projections.data();
    for (; index >= tiles_of(*p); ++p) index -= tiles_of(*p);
    const int unit = static_cast<int>(index);
    compute_tile(context, params, *p, unit % row_tiles * kTileRows, unit / row_tiles * kTileColumns,
                 thread);
  });
}

}  // namespace quantspec::cpu
