#include <cmath>

#include "backend/reference/ops.h"

namespace quantspec::reference {

void rms_norm(const Norm& norm, const float* x, int size, float* out) {
  float factor = 1.0f;
  if (norm.weight != nullptr) {
    float sum = 0.0f;
    for (int i = 0; i < size; ++i) sum += x[i] * x[i];
    factor = 1.0f / std::sqrt(sum / static_cast<float>(size) + norm.epsilon);
  }
  for (int i = 0; i < size; ++i) {
    out[i] = norm.weight != nullptr ? x[i] * factor * norm.weight[i] : x[i];
  }
}

std::vector<float> rms_norm_rows(ThreadPool& pool, const Norm& norm, const float* x, int num_rows,
                                 int size) {
  std::vector<float> out(static_cast<std::size_t>(num_rows) * size);
  pool.parallel_for(num_rows, [&](std::int64_t row, int) {
    rms_norm(norm, x + row * size, size, out.data() + row * size);
  });
  return out;
}

}  // namespace quantspec::reference
