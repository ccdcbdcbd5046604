#include "roofline/probe_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quantspec::roofline {

namespace {

constexpr double flops_of(int rows, int cols) { return 2.0 * rows * cols * kDepth; }

// NOTE: with 16-byte loads one core reads memory at half the speed of 64-byte ones (8 to 14 against
// 16 GB/s on a Xeon of 2023), so this too is compiled for every instruction set.
[[gnu::always_inline]] inline std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  std::array<std::uint64_t, 64> sums{};
  for (std::size_t i = 0; i < count; i += sums.size()) {
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += words[i + j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

std::uint64_t sum_scalar(const std::uint64_t* words, std::size_t count) {
  return sum_of(words, count);
}

void multiply_scalar(Tile& tile) {
  constexpr int kRows = 4, kCols = 8;
  float sums[kRows][kCols] = {};
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kRows; ++row) {
      for (int col = 0; col < kCols; ++col) {
        sums[row][col] += tile.a[k * kMaxRows + row] * tile.b[k * kMaxCols + col];
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) tile.c[row * kMaxCols + col] += sums[row][col];
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t sum_avx2(const std::uint64_t* words,
                                                       std::size_t count) {
  return sum_of(words, count);
}

__attribute__((target("avx512f"))) std::uint64_t sum_avx512(const std::uint64_t* words,
                                                            std::size_t count) {
  return sum_of(words, count);
}

// 12 of 16 registers are sums.
__attribute__((target("avx2,fma"))) void multiply_avx2(Tile& tile) {
  constexpr int kRows = 6;
  __m256 sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm256_setzero_ps();
  for (int k = 0; k < kDepth; ++k) {
    const __m256 b0 = _mm256_load_ps(&tile.b[k * kMaxCols]);
    const __m256 b1 = _mm256_load_ps(&tile.b[k * kMaxCols + 8]);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const __m256 a = _mm256_broadcast_ss(&tile.a[k * kMaxRows + row]);
      sums[row][0] = _mm256_fmadd_ps(a, b0, sums[row][0]);
      sums[row][1] = _mm256_fmadd_ps(a, b1, sums[row][1]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) {
      float* c = &tile.c[row * kMaxCols + 8 * half];
      _mm256_store_ps(c, _mm256_add_ps(_mm256_load_ps(c), sums[row][half]));
    }
  }
}

// 24 of 32 registers are sums.
__attribute__((target("avx512f"))) void multiply_avx512(Tile& tile) {
  __m512 sums[kMaxRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  for (int k = 0; k < kDepth; ++k) {
    const __m512 b0 = _mm512_load_ps(&tile.b[k * kMaxCols]);
    const __m512 b1 = _mm512_load_ps(&tile.b[k * kMaxCols + 16]);
#pragma GCC unroll 12
    for (int row = 0; row < kMaxRows; ++row) {
      const __m512 a = _mm512_set1_ps(tile.a[k * kMaxRows + row]);
      sums[row][0] = _mm512_fmadd_ps(a, b0, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(a, b1, sums[row][1]);
    }
  }
  for (int row = 0; row < kMaxRows; ++row) {
    for (int half = 0; half < 2; ++half) {
      float* c = &tile.c[row * kMaxCols + 16 * half];
      _mm512_store_ps(c, _mm512_add_ps(_mm512_load_ps(c), sums[row][half]));
    }
  }
}
#endif

}  // namespace

Tile::Tile() {
  a.fill(1);
  b.fill(1.0f / kDepth);
}

Kernels choose_kernels([[maybe_unused]] std::string_view instruction_set) {
#if defined(__x86_64__)
  if (instruction_set.starts_with("avx512")) {
    return {sum_avx512, multiply_avx512, flops_of(kMaxRows, kMaxCols)};
  }
  if (instruction_set == "avx2") return {sum_avx2, multiply_avx2, flops_of(6, 16)};
#endif
  return {sum_scalar, multiply_scalar, flops_of(4, 8)};
}

}  // namespace quantspec::roofline
