#include "prepare/linear_algebra.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/gemm.h"
#include "prepare/fields.h"

namespace quantspec {

namespace {

constexpr int kTile = 128;

int tiles(int size) { return (size + kTile - 1) / kTile; }
int tile_size(int size, int tile) { return std::min(kTile, size - tile * kTile); }

// Calls f(row tile, column tile) for the tiles of the upper triangle of [size, size].
template <typename F>
void for_upper_tiles(ThreadPool& pool, int size, const F& f) {
  const std::int64_t n = tiles(size);
  pool.parallel_for(n * n, [&](std::int64_t index, int) {
    const int i = static_cast<int>(index / n), j = static_cast<int>(index % n);
    if (i <= j) f(i, j);
  });
}

// R upper triangular with block = R R^T, in place, then its inverse; both [size, size] with rows
// `stride` and kTile apart. False where the block is not positive definite.
bool factor_tile(float* block, int size, std::ptrdiff_t stride, float* inverse) {
  std::vector<double> r(kTile * kTile), u(kTile * kTile);
  for (int j = size - 1; j >= 0; --j) {
    for (int i = j; i >= 0; --i) {
      double sum = block[i * stride + j];
      for (int k = j + 1; k < size; ++k) sum -= r[i * kTile + k] * r[j * kTile + k];
      if (i == j && !(sum > 0.0)) return false;
      r[i * kTile + j] = i == j ? std::sqrt(sum) : sum / r[j * kTile + j];
    }
  }
  for (int j = 0; j < size; ++j) {
    for (int i = j; i >= 0; --i) {
      double sum = i == j ? 1.0 : 0.0;
      for (int k = i + 1; k <= j; ++k) sum -= r[i * kTile + k] * u[k * kTile + j];
      u[i * kTile + j] = sum / r[i * kTile + i];
    }
  }
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
      block[i * stride + j] = static_cast<float>(r[i * kTile + j]);
      inverse[i * kTile + j] = static_cast<float>(u[i * kTile + j]);
    }
  }
  return true;
}

// h = R R^T, R upper triangular, in place, from the last tile to the first; inverses: of the tiles
// on R's diagonal, [tiles, kTile, kTile].
bool factor(ThreadPool& pool, std::vector<float>& h, int size, std::vector<float>& inverses) {
  for (int t = tiles(size) - 1; t >= 0; --t) {
    const int first = t * kTile, width = tile_size(size, t);
    float* inverse = &inverses[static_cast<std::size_t>(t) * kTile * kTile];
    float* column = h.data() + first;  // the tiles above the diagonal one
    float* diagonal = column + static_cast<std::size_t>(first) * size;
    if (!factor_tile(diagonal, width, size, inverse)) return false;
    // R[i, t] = h[i, t] R[t, t]^-T
    pool.parallel_for(t, [&](std::int64_t i, int) {
      float* panel = column + i * kTile * size;
      std::vector<float> solved(kTile * kTile);
      gemm({.transpose_b = true,
            .m = kTile,
            .n = width,
            .k = width,
            .a = panel,
            .lda = size,
            .b = inverse,
            .ldb = kTile,
            .c = solved.data(),
            .ldc = kTile});
      for (int r = 0; r < kTile; ++r) std::copy_n(&solved[r * kTile], width, panel + r * size);
    });
    // h[i, j] -= R[i, t] R[j, t]^T
    for_upper_tiles(pool, first, [&](int i, int j) {
      gemm({.transpose_b = true,
            .m = kTile,
            .n = kTile,
            .k = width,
            .alpha = -1.0f,
            .a = column + std::ptrdiff_t{i} * kTile * size,
            .lda = size,
            .b = column + std::ptrdiff_t{j} * kTile * size,
            .ldb = size,
            .c = &h[static_cast<std::size_t>(i) * kTile * size + j * kTile],
            .ldc = size});
    });
  }
  return true;
}

// r = r^-1, in place, from the last row of tiles to the first:
// U[t, rest] = -R[t, t]^-1 (R[t, rest] U[rest, rest])
void invert(ThreadPool& pool, std::vector<float>& r, int size, const std::vector<float>& inverses) {
  for (int t = tiles(size) - 1; t >= 0; --t) {
    const int first = t * kTile, width = tile_size(size, t), rest = first + width;
    const float* inverse = &inverses[static_cast<std::size_t>(t) * kTile * kTile];
    float* row = &r[static_cast<std::size_t>(first) * size];
    std::vector<float> products(static_cast<std::size_t>(kTile) * size);
    pool.parallel_for(tiles(size) - t - 1, [&](std::int64_t tile, int) {
      const int column = rest + static_cast<int>(tile) * kTile;
      const int n = std::min(kTile, size - column);
      gemm({.m = width,
            .n = n,
            .k = column + n - rest,
            .a = row + rest,
            .lda = size,
            .b = &r[static_cast<std::size_t>(rest) * size + column],
            .ldb = size,
            .c = &products[column],
            .ldc = size});
    });
    for (int i = 0; i < width; ++i) {
      std::fill_n(row + std::ptrdiff_t{i} * size + first, size - first, 0.0f);
      std::copy_n(inverse + i * kTile, width, row + std::ptrdiff_t{i} * size + first);
    }
    pool.parallel_for(tiles(size) - t - 1, [&](std::int64_t tile, int) {
      const int column = rest + static_cast<int>(tile) * kTile;
      gemm({.m = width,
            .n = std::min(kTile, size - column),
            .k = width,
            .alpha = -1.0f,
            .a = inverse,
            .lda = kTile,
            .b = &products[column],
            .ldb = size,
            .c = row + column,
            .ldc = size});
    });
  }
}

}  // namespace

Gram::Gram(int size) : size_(size), sums_(static_cast<std::size_t>(size) * size) {}

void Gram::add(ThreadPool& pool, const float* x, int rows) {
  rows_ += rows;
  for_upper_tiles(pool, size_, [&](int i, int j) {
    gemm({.transpose_a = true,
          .m = tile_size(size_, i),
          .n = tile_size(size_, j),
          .k = rows,
          .a = x + i * kTile,
          .lda = size_,
          .b = x + j * kTile,
          .ldb = size_,
          .c = &sums_[static_cast<std::size_t>(i) * kTile * size_ + j * kTile],
          .ldc = size_});
  });
}

void Gram::complete() {
  for (int i = 0; i < size_; ++i) {
    for (int j = 0; j < i; ++j) {
      sums_[static_cast<std::size_t>(i) * size_ + j] =
          sums_[static_cast<std::size_t>(j) * size_ + i];
    }
  }
}

std::vector<float> inverse_factor(ThreadPool& pool, const Gram& gram, float damping) {
  const int size = gram.size();
  double trace = 0.0;
  for (int i = 0; i < size; ++i) trace += gram.at(i, i);
  const double added = trace > 0.0 ? damping * trace / size : 1.0;
  std::vector<float> h(static_cast<std::size_t>(size) * size);
  for (int i = 0; i < size; ++i) {
    for (int j = i; j < size; ++j) h[static_cast<std::size_t>(i) * size + j] = gram.at(i, j);
    h[static_cast<std::size_t>(i) * size + i] += static_cast<float>(added);
  }
  std::vector<float> inverses(static_cast<std::size_t>(tiles(size)) * kTile * kTile);
  if (!std::isfinite(trace) || !factor(pool, h, size, inverses)) {
    fail(ErrorKind::kInvalidRequest,
         "{}: gave activations that are not finite, or hardly any; use other text",
         field::kCalibration);
  }
  invert(pool, h, size, inverses);
  return h;
}

}  // namespace quantspec
