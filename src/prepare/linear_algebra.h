// The dense fp32 algebra that GPTQ needs. Matrices are row-major. Large products are oneDNN's, each
// in one thread; the pool divides the work.
#pragma once

#include <cstddef>
#include <vector>

#include "base/thread_pool.h"

namespace quantspec {

// c [m, n] += alpha * op(a) b, b [k, n]; op(a) [m, k] is a, or the transpose of a [k, m]. `lda` and
// so on: elements from a row to the next. In the calling thread.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;  // b is [n, k]
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

// The sum of x x^T over rows x of activations: [size, size], symmetric.
class Gram {
 public:
  explicit Gram(int size);

  int size() const { return size_; }
  std::int64_t rows() const { return rows_; }  // added so far
  // x: [rows, size].
  void add(ThreadPool& pool, const float* x, int rows);
  // Valid after complete().
  float at(int i, int j) const { return sums_[static_cast<std::size_t>(i) * size_ + j]; }
  const float* data() const { return sums_.data(); }
  // Call once, after the last add().
  void complete();

 private:
  int size_;
  std::int64_t rows_ = 0;
  std::vector<float> sums_;  // until complete(), the upper triangle
};

// The upper triangular U with (gram + damping * mean diagonal * I)^-1 = U^T U: [size, size], zeros
// below the diagonal. Throws kInvalidRequest where the sum is not positive definite even so: there
// were activations that are not finite.
std::vector<float> inverse_factor(ThreadPool& pool, const Gram& gram, float damping);

}  // namespace quantspec
