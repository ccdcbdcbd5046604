// The inner loop of every matrix product of the oracle. Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>

namespace quantspec::reference {

// Sums that are taken side by side. NOTE: more than 16, or g++ 12 unrolls the loop over them and
// then vectorises the loop over i, six times slower; 32 is near the peak of SSE2 (29 GFLOP/s a
// core).
inline constexpr int kTile = 32;

// sums[j] += a[i] * b[i * kTile + j], for i = 0, 1, ..., count - 1 in this order; j < kTile.
inline void add_products(const float* a, const float* b, int count, float* sums) {
  float local[kTile];
  std::copy_n(sums, kTile, local);
  for (int i = 0; i < count; ++i) {
    const float* row = b + static_cast<std::ptrdiff_t>(i) * kTile;
    for (int j = 0; j < kTile; ++j) local[j] += a[i] * row[j];
  }
  std::copy_n(local, kTile, sums);
}

// out[i][row] = x[row][i], with zeros beyond num_rows: [size, kTile]. Rows are `stride` apart.
inline void transpose_tile(const float* x, std::ptrdiff_t stride, int num_rows, int size,
                           float* out) {
  for (int i = 0; i < size; ++i) {
    for (int row = 0; row < kTile; ++row) {
      out[static_cast<std::ptrdiff_t>(i) * kTile + row] = row < num_rows ? x[row * stride + i] : 0;
    }
  }
}

}  // namespace quantspec::reference
