#include "backend/cpu/prefill.h"

#include <dnnl.h>

#include "base/error.h"

// NOTE: Debian's oneDNN runs on GNU OpenMP whatever our compiler, so its two functions are declared
// here: a compiler's own omp.h may belong to another runtime.
extern "C" {
void omp_set_num_threads(int num_threads);
int omp_get_max_threads(void);
}

namespace quantspec::cpu {

namespace {

constexpr int kTileRows = 128;
constexpr int kTileColumns = 256;

// While it lives, oneDNN computes in the calling thread alone: the pool divides the work.
class OneOmpThread {
 public:
  OneOmpThread() { omp_set_num_threads(1); }
  ~OneOmpThread() { omp_set_num_threads(previous_); }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int previous_ = omp_get_max_threads();
};

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
  const OneOmpThread one;
  const dnnl_status_t status = dnnl_sgemm(
      'N', 'T', rows, columns, w.cols, 1.0f, params.x + static_cast<std::size_t>(row) * w.cols,
      w.cols, weights, w.cols, params.accumulate ? 1.0f : 0.0f, y, stride);
  check(status == dnnl_success, "oneDNN refuses a matrix product");
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
