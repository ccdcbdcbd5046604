#include "prepare/observer.h"

#include <cmath>
#include <utility>

namespace quantspec {

namespace {

// norm(x) of each row, [rows, size].
std::vector<float> normed(const Norm& norm, const float* x, int rows, int size) {
  std::vector<float> out(x, x + static_cast<std::ptrdiff_t>(rows) * size);
  for (int row = 0; row < rows; ++row) {
    float* y = &out[static_cast<std::size_t>(row) * size];
    double squares = 0.0;
    for (int i = 0; i < size; ++i) squares += double{y[i]} * y[i];
    const auto factor = static_cast<float>(1.0 / std::sqrt(squares / size + norm.epsilon));
    for (int i = 0; i < size; ++i) y[i] *= factor * norm.weight[i];
  }
  return out;
}

}  // namespace

void InputSums::watch(const std::set<const Linear*>& linears) {
  sums_.clear();
  for (const Linear* linear : linears) sums_.emplace(linear, linear->inputs());
}

std::map<const Linear*, Gram> InputSums::take() {
  for (auto& [linear, sum] : sums_) sum.complete();
  return std::exchange(sums_, {});
}

void InputSums::observe(const Linear& linear, const Norm& norm, const float* in, int rows) {
  const auto found = sums_.find(&linear);
  if (found == sums_.end()) return;
  if (norm.weight == nullptr) {
    found->second.add(pool_, in, rows);
  } else {
    found->second.add(pool_, normed(norm, in, rows, linear.inputs()).data(), rows);
  }
}

}  // namespace quantspec
