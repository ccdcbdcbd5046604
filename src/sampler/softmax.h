// The dense passes over a row of logits, in plain loops that the compiler vectorizes. Private to
// the sampler. Pure; thread-safe.
#pragma once

#include <span>

namespace quantspec {

// The largest value. Throws Error(kInternal) if one is NaN or +infinity, or if all are -infinity.
float largest_logit(std::span<const float> logits);

// The largest of non-negative weights; 0 if there is none.
float largest_weight(std::span<const float> weights);

// The sum of non-negative weights, in double. Its order of addition depends on the size alone.
double sum_weights(std::span<const float> weights);

// exp((logits - max) / temperature) in place, and scale_weights by the inverse of their sum.
// Relative error below 1e-6 but for the rounding of the exponent. REQUIRES: max =
// largest_logit(logits), temperature > 0.
void softmax(std::span<float> logits, float max, float temperature);

void scale_weights(std::span<float> weights, float factor);

}  // namespace quantspec
