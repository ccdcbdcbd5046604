// The dense fp32 algebra that GPTQ needs, over the products of base/gemm.h. Matrices are row-major.
#pragma once

#include <cstddef>
#include <vector>

#include "base/thread_pool.h"

namespace quantspec {

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
