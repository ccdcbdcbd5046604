#include <algorithm>

#include "backend/params/segments.h"
#include "backend/reference/ops.h"
#include "backend/reference/tile.h"
#include "base/error.h"

namespace quantspec::reference {

namespace {

constexpr int kOutputsPerTask = 16;

// in [num_rows, inputs] as tiles of kTile rows, [tiles, inputs, kTile].
std::vector<float> transpose_rows(ThreadPool& pool, const float* in, int num_rows, int inputs) {
  const std::int64_t tiles = (num_rows + kTile - 1) / kTile;
  const std::int64_t tile_size = std::int64_t{inputs} * kTile;
  std::vector<float> out(tiles * tile_size);
  pool.parallel_for(tiles, [&](std::int64_t tile, int) {
    const int rows = std::min<int>(kTile, num_rows - tile * kTile);
    transpose_tile(in + tile * tile_size, inputs, rows, inputs, &out[tile * tile_size]);
  });
  return out;
}

// sums[j] = the sum of all products, segment by segment.
void sum_segments(const Segments& segments, const float* weights, const float* tile,
                  float (&sums)[kTile]) {
  float all[kMostSegments][kTile] = {};
  for (int i = 0, first = 0; i < segments.count; first = segments.ends[i++]) {
    add_products(weights + first, tile + std::ptrdiff_t{first} * kTile, segments.ends[i] - first,
                 all[i]);
  }
  for (int step = 1; step < segments.count; step *= 2) {
    for (int i = 0; i < segments.count; i += 2 * step) {
      for (int j = 0; j < kTile; ++j) all[i][j] += all[i + step][j];
    }
  }
  std::copy_n(all[0], kTile, sums);
}

}  // namespace

void add_linear(ThreadPool& pool, const Linear& linear, WeightRead read, const float* in,
                int num_rows, float* y) {
  check(readable(linear, read), "a pass reads weight planes that were not made");
  const Matrix& matrix = matrix_of(linear, read);
  const int inputs = linear.inputs();
  const std::int64_t outputs = linear.outputs();
  const std::vector<float> tiles = transpose_rows(pool, in, num_rows, inputs);
  const Segments segments = segments_of(linear, read);
  const std::int64_t tasks = (outputs + kOutputsPerTask - 1) / kOutputsPerTask;
  pool.parallel_for(tasks, [&](std::int64_t task, int) {
    const int first = static_cast<int>(task) * kOutputsPerTask;
    const int count = std::min(kOutputsPerTask, linear.outputs() - first);
    std::vector<float> weights(static_cast<std::size_t>(count) * inputs);
    for (int o = 0; o < count; ++o) read_row(matrix, read, first + o, &weights[o * inputs]);
    for (int first_row = 0; first_row < num_rows; first_row += kTile) {
      const float* tile = &tiles[static_cast<std::size_t>(first_row) * inputs];
      for (int o = 0; o < count; ++o) {
        float sums[kTile];
        sum_segments(segments, &weights[o * inputs], tile, sums);
        for (int r = 0; r < std::min(kTile, num_rows - first_row); ++r) {
          float& out = y[(first_row + r) * outputs + first + o];
          if (linear.bias != nullptr) out += linear.bias[first + o];
          out += sums[r];
        }
      }
    }
  });
}

std::vector<float> apply_linear(ThreadPool& pool, const Linear& linear, WeightRead read,
                                const float* in, int num_rows) {
  std::vector<float> y(static_cast<std::size_t>(num_rows) * linear.outputs());
  add_linear(pool, linear, read, in, num_rows, y.data());
  return y;
}

}  // namespace quantspec::reference
