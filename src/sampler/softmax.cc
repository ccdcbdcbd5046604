#include "sampler/softmax.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/exponential.h"
#include "base/fields.h"

namespace quantspec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// An integer that orders as x does, with NaNs beyond the infinities. Compilers vectorize the search
// for the largest integer, but not that for the largest float, because of NaN and -0.
constexpr std::int32_t order_of(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
constexpr float of_order(std::int32_t order) {
  return std::bit_cast<float>(order ^ ((order >> 31) & 0x7FFFFFFF));
}

}  // namespace

float largest_logit(std::span<const float> logits) {
  constexpr std::int32_t kNothing = order_of(-kInfinity);
  const auto [least, most] = vectorized([=] {
    std::int32_t least = 0, most = kNothing;
    for (const float x : logits) {
      least = std::min(least, order_of(x));
      most = std::max(most, order_of(x));
    }
    return std::pair(least, most);
  });
  if (most >= order_of(kInfinity) || least < kNothing) {  // infinite, or NaN of either sign
    fail(ErrorKind::kCorruptFile,
         "the model produced a logit that is NaN or infinite; nothing can be sampled from it "
         "(check the checkpoint for NaN weights, or try another {})",
         field::kBackend);
  }
  if (most == kNothing) {
    fail(ErrorKind::kCorruptFile, "all {} logits are -infinity; no token can be chosen",
         logits.size());
  }
  return of_order(most);
}

float largest_weight(std::span<const float> weights) {
  return vectorized([=] {
    std::int32_t most = 0;
    for (const float x : weights) most = std::max(most, order_of(x));
    return of_order(most);
  });
}

std::size_t index_of(std::span<const float> values, float value) {
  return vectorized([=] {
    constexpr std::size_t kBand = 128;  // whether it is among them is seen without a branch
    std::size_t begin = 0;
    for (; begin + kBand <= values.size(); begin += kBand) {
      std::uint32_t found = 0;
      for (std::size_t i = 0; i < kBand; ++i) found |= values[begin + i] == value ? 1u : 0u;
      if (found != 0) break;
    }
    while (begin < values.size() && values[begin] != value) ++begin;
    return begin;
  });
}

double sum_weights(std::span<const float> weights) {
  return sum_of(weights.size(), [&](std::size_t i) { return weights[i]; });
}

void softmax(std::span<float> logits, float max, float temperature) {
  // The bound keeps 0 * inverse, the largest logit's, a 0 at the smallest of temperatures.
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  // NOTE: two loops, because in one g++ 12 merges the two conditions into a branch and vectorizes
  // nothing (5x slower).
  vectorized([=] {
    for (float& x : logits) {
      const float scaled = (x - max) * inverse;
      x = scaled > kLowestExponent ? scaled : kLowestExponent;
    }
    for (float& x : logits) x = exp_negative(x);
  });
  scale_weights(logits, static_cast<float>(1.0 / sum_weights(logits)));
}

void scale_weights(std::span<float> weights, float factor) {
  vectorized([=] {
    for (float& weight : weights) weight *= factor;
  });
}

}  // namespace quantspec
