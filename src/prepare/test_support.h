// What the tests of this room share: random matrices and inputs.
#pragma once

#include <cmath>
#include <vector>

#include "backend/params/linear.h"
#include "base/random.h"

namespace quantspec {

// Numbers in [-1, 1), the same for a seed on every machine.
inline std::vector<float> uniform_floats(std::size_t count, std::uint64_t seed) {
  const CounterRng rng(seed);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = rng.block(static_cast<std::int64_t>(i), RandomStream::kSample, 0);
    x[i] = 2.0f * CounterRng::to_unit(words[0]) - 1.0f;
  }
  return x;
}

// Rows of inputs that depend on each other, as activations do: each is the one before it, in part.
inline std::vector<float> correlated_rows(int rows, int size, std::uint64_t seed) {
  std::vector<float> x = uniform_floats(static_cast<std::size_t>(rows) * size, seed);
  for (int r = 0; r < rows; ++r) {
    float* row = &x[static_cast<std::size_t>(r) * size];
    for (int i = 1; i < size; ++i) row[i] = 0.8f * row[i - 1] + 0.6f * row[i];
  }
  return x;
}

inline Matrix view_of(const std::vector<float>& values, int rows, int cols) {
  return dense({values.data(), DType::kF32, rows, cols});
}

}  // namespace quantspec
