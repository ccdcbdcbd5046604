#include "backend/cpu/prefill.h"

#include "base/gemm.h"

namespace quantspec::cpu {

namespace {

constexpr int kTileRows = 128;
constexpr int kTileColumns = 256;

constexpr int tiles(int size, int tile) { return (size + tile - 1) / tile; }

void compute_tile(const Context& context, const ProjectParams& params, const Projection& p, int row,
                  int column, int thread) {
  const TensorView& w = p.linear->full;
  const int rows = std::min(kTileRows, params.rows - row);
  const int columns = std::min(kTileColumns, w.rows - column);
  const std::size_t first = static_cast<std::size_t>(column) * w.cols;
  const auto* data = static_cast<const std::byte*>(w.data) + first * size_of(w.dtype);
  float* weights =
      context.scratch.get_for_thread<float>(thread, prefill_tile_bytes(w.cols) / sizeof(float));
  context.kernels.linear.to_f32[static_cast<int>(w.dtype)](data, columns * w.cols, weights);

  const std::ptrdiff_t stride = w.rows;
  float* y = p.y + row * stride + column;
  gemm({.transpose_b = true,
        .accumulate = params.accumulate,
        .m = rows,
        .n = columns,
        .k = w.cols,
        .a = params.x + static_cast<std::size_t>(row) * w.cols,
        .lda = w.cols,
        .b = weights,
        .ldb = w.cols,
        .c = y,
        .ldc = stride});
  if (p.linear->bias == nullptr) return;
  for (int r = 0; r < rows; ++r) {
    context.kernels.linear.add(p.linear->bias + column, columns, y + r * stride);
  }
}

}  // namespace

std::size_t prefill_tile_bytes(int inputs) {
  return sizeof(float) * kTileColumns * static_cast<std::size_t>(inputs);
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
