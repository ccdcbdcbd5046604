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
std::vector<float> inverse_frequencies(float base, int head_dim) {
  std::vector<float> result(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    result[i] = power(base, static_cast<float>(2 * i) / static_cast<float>(head_dim));
  }
  return result;
}

// The base that stretches the longest wave to the sequence ("dynamic NTK").
float dynamic_base(const RopeConfig& rope, int head_dim, int max_positions, int sequence_length) {
  const auto factor = static_cast<float>(rope.factor);
  const auto length = static_cast<float>(std::max(sequence_length, max_positions));
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

std::vector<float> yarn_frequencies(const RopeConfig& rope, int head_dim) {
  const auto [low, high] = yarn_ramp(rope, head_dim);
  std::vector<float> result = inverse_frequencies(static_cast<float>(rope.theta), head_dim);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float slowed = 1 / (static_cast<float>(rope.factor) * result[i]);
    result[i] = slowed * (1 - keep) + 1 / result[i] * keep;
  }
  return result;
}

}  // namespace

Rope::Rope(const ModelConfig& config)
    : rope_(config.rope),
      head_dim_(config.head_dim),
      max_positions_(config.max_positions),
      frequencies_(frequencies(0)) {}

bool Rope::depends_on_length() const {
  return rope_.type == RopeConfig::Type::kDynamic || rope_.type == RopeConfig::Type::kLongrope;
}

std::vector<float> Rope::frequencies(int sequence_length) const {
  const auto theta = static_cast<float>(rope_.theta);
  const auto factor = static_cast<float>(rope_.factor);
  if (rope_.type == RopeConfig::Type::kYarn) return yarn_frequencies(rope_, head_dim_);

  const bool is_dynamic = rope_.type == RopeConfig::Type::kDynamic;
  auto result = inverse_frequencies(
      is_dynamic ? dynamic_base(rope_, head_dim_, max_positions_, sequence_length) : theta,
      head_dim_);
  const auto& stretch =
      sequence_length > rope_.original_max_positions ? rope_.long_factor : rope_.short_factor;
  for (std::size_t i = 0; i < result.size(); ++i) {
    switch (rope_.type) {
      case RopeConfig::Type::kLongrope:
        result[i] = 1 / (stretch[i] * result[i]);
        break;
      case RopeConfig::Type::kLinear:
        result[i] = 1 / result[i] / factor;
        break;
      case RopeConfig::Type::kLlama3:
        result[i] = llama3_frequency(rope_, 1 / result[i]);
        break;
      default:
        result[i] = 1 / result[i];
    }
  }
  return result;
}

void Rope::tables(int first_position, int count, int sequence_length, float* cos,
                  float* sin) const {
  check(first_position >= 0 && count >= 0, "rope: positions start at 0");
  const auto grown = depends_on_length() ? frequencies(sequence_length) : std::vector<float>();
  const std::vector<float>& frequencies = depends_on_length() ? grown : frequencies_;
  const auto scale = static_cast<float>(rope_.attention_factor);
  for (int row = 0; row < count; ++row) {
    const auto position = static_cast<float>(first_position + row);
    for (const float frequency : frequencies) {
      const float angle = position * frequency;
      *cos++ = std::cos(angle) * scale;
      *sin++ = std::sin(angle) * scale;
    }
  }
}

}  // namespace quantspec
