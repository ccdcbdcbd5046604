// Matrix products in fp32, for prefill and for preparing weights. Matrices are row-major; `lda` and
// so on are elements from a row to the next. Thread-safe: a product runs in the calling thread
// alone, so that callers divide the work themselves, and its bits depend on the machine and on the
// shape, on nothing else.
//
// By oneDNN on x86-64. By OpenBLAS elsewhere: oneDNN's dnnl_sgemm is tuned for x86-64 and is a
// plain loop on AArch64. QUANTSPEC_GEMM of CMake chooses, for x86-64 without a oneDNN package.
#pragma once

#include <cstddef>

namespace quantspec {

// c [m, n] = (accumulate ? c : 0) + alpha * op(a) op(b); op(a) [m, k] is a, or the transpose of a
// [k, m]; op(b) [k, n] is b, or the transpose of b [n, k].
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = true;
  int m;
  int n;
  int k;
  float alpha = 1.0f;
  const float* a;
  std::ptrdiff_t lda;
  const float* b;
  std::ptrdiff_t ldb;
  float* c;
  std::ptrdiff_t ldc;
};
void gemm(const Gemm& g);

// A row of c has the same bits in products of any m that is a multiple of `step`, from `least` up
// to kGemmMostRows, whatever its place and the rows beside it. NOTE: measured, per library. oneDNN
// computes a row by other kernels below 16 rows (AVX-512), and where it is among the last 1 to 3
// beyond a multiple of 6 (AVX2); beyond 144 rows it may divide them at such a place itself (AVX2).
// OpenBLAS has kernels for small products (AVX-512), which it takes by their size.
struct GemmRows {
  int least;
  int step;
};
inline constexpr int kGemmMostRows = 144;
GemmRows gemm_rows();

}  // namespace quantspec
