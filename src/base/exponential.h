// exp(x) of a softmax and a standard exponential variate from one random word, in arithmetic that a
// GPU reproduces bit for bit: integer operations and unfused fp32 (-fmad=false there). std::exp and
// std::log would be neither the same everywhere nor available there. Pure; thread-safe.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace quantspec {

// exp(x) for kLowestExponent <= x <= 0, and 0 at kLowestExponent: no draw would find such a token,
// and what is left stays a normal number after the division by a sum over any vocabulary
// (subnormals are slow). exp(x) = 2^n exp(r), |r| <= log(2)/2. The polynomial is that of expf in
// Cephes (S. Moshier).
inline constexpr float kLowestExponent = -75.0f;
constexpr float exp_negative(float x) {
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
  const std::uint32_t keep = x > kLowestExponent ? ~0u : 0u;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(mantissa) + exponent) & keep);
}

// The middle of cell `word` of the 2^32 cells of (0, 1), rounded to fp32.
constexpr float fine_unit(std::uint32_t word) {
  return static_cast<float>(word) * 0x1p-32f + 0x1p-33f;
}

// -log(1 - v), v = fine_unit(word); relative error below 3e-7 over all words, and never below v.
// NOTE: 32 bits and not the 23 of CounterRng::to_unit: with those, tokens of probability below
// 1e-8, which together hold up to 1e-3 of a large vocabulary's mass, could never win the race. The
// polynomial is that of logf in Cephes (S. Moshier).
constexpr float exponential(std::uint32_t word) {
  constexpr std::uint32_t kDirect = 0x4AFB0CCD;  // 1 - v above sqrt(1/2): log1p(-v) from v itself
  float f = -fine_unit(word);
  float exponent = 0;
  if (word >= kDirect) {  // 1 - v = 2^exponent (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)
    const auto bits = std::bit_cast<std::uint32_t>(fine_unit(~word)) - 0x3F3504F3u;
    exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
    f = std::bit_cast<float>((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  }
  float poly = 7.0376836292e-2f;
  for (float coefficient :
       {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
        2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f}) {
    poly = poly * f + coefficient;
  }
  const float square = f * f;
  // log(1 + f) = f - (f^2/2 - f^3 poly), and exponent * log(2) in two parts
  const float bend = 0.5f * square - f * square * poly + exponent * 2.12194440e-4f;
  return (bend - f) - exponent * 0.693359375f;
}

}  // namespace quantspec
