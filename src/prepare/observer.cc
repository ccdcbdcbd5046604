#include "prepare/observer.h"

#include <cmath>
#include <utility>

#include "backend/params/pass.h"

namespace quantspec {

namespace {

constexpr Norm kNoNorm = {nullptr, 0.0f};

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

void Observer::watch(const std::set<const Linear*>& linears) {
  sums_.clear();
  for (const Linear* linear : linears) sums_.emplace(linear, linear->inputs());
}

std::map<const Linear*, Gram> Observer::take() {
  for (auto& [linear, sum] : sums_) sum.complete();
  return std::exchange(sums_, {});
}

void Observer::note(const Linear* linear, const Norm& norm, const float* x, int rows) {
  const auto found = sums_.find(linear);
  if (found == sums_.end()) return;
  if (norm.weight == nullptr) {
    found->second.add(pool_, x, rows);
  } else {
    found->second.add(pool_, normed(norm, x, rows, linear->inputs()).data(), rows);
  }
}

void Observer::qkv(const QkvParams& params) {
  if (params.q_out != nullptr) note(params.q, params.norm, params.x, params.num_rows);
  backend_.qkv(params);
}

void Observer::add_linear(const AddLinearParams& params) {
  note(params.linear, kNoNorm, params.in, params.num_rows);
  backend_.add_linear(params);
}

void Observer::gate_up(const GateUpParams& params) {
  note(params.gate, params.norm, params.x, params.num_rows);
  backend_.gate_up(params);
}

void Observer::head(const HeadParams& params) {
  note(params.head, params.norm, params.x, params.num_rows);
  backend_.head(params);
}

}  // namespace quantspec
