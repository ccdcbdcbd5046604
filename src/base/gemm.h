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

}  // namespace quantspec
