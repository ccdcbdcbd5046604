// The dense passes over a row of logits, in plain loops that the compiler vectorizes. Private to
// the sampler. Pure; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "sampler/vectorize.h"

namespace quantspec {

// The largest value. Throws Error(kCorruptFile) if one is NaN or +infinity, or if all are
// -infinity.
float largest_logit(std::span<const float> logits);

// The largest of non-negative weights; 0 if there is none.
float largest_weight(std::span<const float> weights);

// The index of the first that equals `value`; the size if there is none.
std::size_t index_of(std::span<const float> values, float value);

// The sum of weight(i), i < count, in double. Its order of addition depends on the count alone.
template <typename Weight>
double sum_of(std::size_t count, const Weight& weight) {
  // Side by side: floating-point sums may not be reordered, so a loop that is to be vectorized says
  // in which order it adds.
  constexpr std::size_t kLanes = 16;
  return vectorized([&] {
    std::array<double, kLanes> sum{};
    const std::size_t whole = count / kLanes * kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) sum[lane] += weight(i + lane);
    }
    for (std::size_t i = whole; i < count; ++i) sum[i - whole] += weight(i);
    double total = 0;
    for (double part : sum) total += part;
    return total;
  });
}
double sum_weights(std::span<const float> weights);

// exp((logits - max) / temperature) in place, and scale_weights by the inverse of their sum.
// Relative error below 1e-6 but for the rounding of the exponent. REQUIRES: max =
// largest_logit(logits), temperature > 0.
void softmax(std::span<float> logits, float max, float temperature);

void scale_weights(std::span<float> weights, float factor);

}  // namespace quantspec
