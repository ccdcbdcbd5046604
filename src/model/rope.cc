#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace quantspec {

namespace {

// fp32 power, correctly rounded: through double.
float power(float base, float exponent) {
  return static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
}

// base^(2 i / head_dim): the inverse of the frequency of pair i.
float inverse_frequency(float base, int pair, int head_dim) {
  return power(base, static_cast<float>(2 * pair) / static_cast<float>(head_dim));
}

// The base that stretches the longest wave to the context ("dynamic NTK").
float dynamic_base(const RopeConfig& rope, int head_dim, int max_positions, int context) {
  const auto factor = static_cast<float>(rope.factor);
  const auto length = static_cast<float>(std::max(context, max_positions));
  const float stretch =
      factor * length / static_cast<float>(max_positions) - static_cast<float>(rope.factor - 1);
  const auto exponent = static_cast<float>(head_dim / (head_dim - 2.0));
  return static_cast<float>(rope.theta) * power(stretch, exponent);
}

// Waves that turn fewer than low_freq_factor times in the original length are slowed by `factor`,
// those that turn more than high_freq_factor times are kept, and between them it is a mix.
float llama3_frequency(const RopeConfig& rope, float frequency) {
  const double original = rope.original_max_positions;
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto span = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  const float wavelength = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
  if (wavelength > static_cast<float>(original / rope.low_freq_factor)) return frequency / factor;
  if (wavelength < static_cast<float>(original / rope.high_freq_factor)) return frequency;
  const float keep = (1 / wavelength * static_cast<float>(original) - low) / span;
  return (1 - keep) * frequency / factor + keep * frequency;
}

// YaRN (arXiv:2309.00071): pairs below `low` keep their frequency, pairs above `high` are slowed by
// `factor`, with a ramp between them.
struct YarnRamp {
  double low;
  double high;
};

YarnRamp yarn_ramp(const RopeConfig& rope, int head_dim) {
  // The pair that turns this many times in the original length.
  const auto pair_of = [&](double turns) {
    return head_dim * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast);
  double high = pair_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  return {low, low == high ? high + 0.001 : high};
}

float yarn_frequency(const RopeConfig& rope, int pair, int head_dim) {
  const auto [low, high] = yarn_ramp(rope, head_dim);
  const float inverse = inverse_frequency(static_cast<float>(rope.theta), pair, head_dim);
  const float ramp =
      (static_cast<float>(pair) - static_cast<float>(low)) / static_cast<float>(high - low);
  const float keep = 1 - std::clamp(ramp, 0.0f, 1.0f);
  const float slowed = 1 / (static_cast<float>(rope.factor) * inverse);
  return slowed * (1 - keep) + 1 / inverse * keep;
}

}  // namespace

Rope::Rope(const ModelConfig& config, int context)
    : rope_(config.rope),
      head_dim_(config.head_dim),
      max_positions_(config.max_positions),
      context_(context),
      frequencies_(config.head_dim / 2) {
  for (int i = 0; i < head_dim_ / 2; ++i) frequencies_[i] = frequency(i);
}

float Rope::frequency(int pair) const {
  const auto theta = static_cast<float>(rope_.theta);
  const auto factor = static_cast<float>(rope_.factor);
  const float inverse =
      inverse_frequency(rope_.type == RopeConfig::Type::kDynamic
                            ? dynamic_base(rope_, head_dim_, max_positions_, context_)
                            : theta,
                        pair, head_dim_);
  switch (rope_.type) {
    case RopeConfig::Type::kLongrope: {
      const auto& stretch =
          context_ > rope_.original_max_positions ? rope_.long_factor : rope_.short_factor;
      return 1 / (stretch[pair] * inverse);
    }
    case RopeConfig::Type::kLinear:
      return 1 / inverse / factor;
    case RopeConfig::Type::kLlama3:
      return llama3_frequency(rope_, 1 / inverse);
    case RopeConfig::Type::kYarn:
      return yarn_frequency(rope_, pair, head_dim_);
    default:
      return 1 / inverse;
  }
}

void Rope::tables(int first_position, int count, float* cos, float* sin) const {
  check(first_position >= 0 && count >= 0, "rope: positions start at 0");
  const auto scale = static_cast<float>(rope_.attention_factor);
  const std::ptrdiff_t pairs = std::ssize(frequencies_);
  for (int pair = 0; pair < pairs; ++pair) {
    const float frequency = frequencies_[pair];
    for (int row = 0; row < count; ++row) {
      const float angle = static_cast<float>(first_position + row) * frequency;
      cos[row * pairs + pair] = std::cos(angle) * scale;
      sin[row * pairs + pair] = std::sin(angle) * scale;
    }
  }
}

}  // namespace quantspec
