#include "sampler/softmax.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace quantspec {
namespace {

// Running values side by side: floating-point sums may not be reordered, so a loop that is to be
// vectorized says in which order it adds.
constexpr std::size_t kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(x) for kLowest <= x <= 0, and 0 at kLowest: no draw would find such a token, and what is left
// stays a normal number after the division by a sum over any vocabulary (subnormals are slow).
// exp(x) = 2^n exp(r), |r| <= log(2)/2. The polynomial is that of expf in Cephes (S. Moshier).
constexpr float kLowest = -75.0f;
inline float exp_negative(float x) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float poly = 1.9875691500e-4f;
  poly = poly * r + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  const float mantissa = poly * (r * r) + r + 1.0f;
  const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23;  // n, modulo 2^9
  const std::uint32_t keep = x > kLowest ? ~0u : 0u;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(mantissa) + exponent) & keep);
}

}  // namespace

float largest_logit(std::span<const float> logits) {
  std::array<float, kLanes> max;
  std::array<std::uint32_t, kLanes> invalid{};
  max.fill(-kInfinity);
  const std::size_t whole = logits.size() / kLanes * kLanes;
  const auto visit = [&](std::size_t lane, float x) {
    max[lane] = x > max[lane] ? x : max[lane];
    invalid[lane] |= x < kInfinity ? 0u : 1u;  // true of NaN too
  };
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) visit(lane, logits[i + lane]);
  }
  for (std::size_t i = whole; i < logits.size(); ++i) visit(i - whole, logits[i]);
  if (std::ranges::any_of(invalid, [](std::uint32_t flag) { return flag != 0; })) {
    fail(ErrorKind::kCorruptFile,
         "the model produced a logit that is NaN or infinite; nothing can be sampled from it "
         "(check the checkpoint for NaN weights, or try another --backend)");
  }
  const float result = std::ranges::max(max);
  if (result == -kInfinity) {
    fail(ErrorKind::kCorruptFile, "all {} logits are -infinity; no token can be chosen",
         logits.size());
  }
  return result;
}

float largest_weight(std::span<const float> weights) {
  std::array<float, kLanes> max{};
  const std::size_t whole = weights.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = weights[i + lane];
      max[lane] = x > max[lane] ? x : max[lane];
    }
  }
  for (std::size_t i = whole; i < weights.size(); ++i) max[0] = std::max(max[0], weights[i]);
  return std::ranges::max(max);
}

double sum_weights(std::span<const float> weights) {
  std::array<double, kLanes> sum{};
  const std::size_t whole = weights.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sum[lane] += weights[i + lane];
  }
  for (std::size_t i = whole; i < weights.size(); ++i) sum[i - whole] += weights[i];
  double total = 0;
  for (double part : sum) total += part;
  return total;
}

void softmax(std::span<float> logits, float max, float temperature) {
  // The bound keeps 0 * inverse, the largest logit's, a 0 at the smallest of temperatures.
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  // NOTE: two loops, because in one g++ 12 merges the two conditions into a branch and vectorizes
  // nothing (5x slower).
  for (float& x : logits) {
    const float scaled = (x - max) * inverse;
    x = scaled > kLowest ? scaled : kLowest;
  }
  for (float& x : logits) x = exp_negative(x);
  scale_weights(logits, static_cast<float>(1.0 / sum_weights(logits)));
}

void scale_weights(std::span<float> weights, float factor) {
  for (float& weight : weights) weight *= factor;
}

}  // namespace quantspec
