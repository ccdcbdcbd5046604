#include "model/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quantspec {

namespace {

constexpr int kMaxLength = 1 << 30;
constexpr double kMaxFactor = 1e6;

RopeConfig::Type parse_rope_type(const Fields& rope) {
  using enum RopeConfig::Type;
  constexpr std::array<std::pair<std::string_view, RopeConfig::Type>, 6> kTypes = {
      {{"default", kDefault},
       {"linear", kLinear},
       {"dynamic", kDynamic},
       {"llama3", kLlama3},
       {"yarn", kYarn},
       {"longrope", kLongrope}}};
  const std::string_view key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string* name = rope.find_string(key);
  if (name == nullptr) return kDefault;
  for (const auto& [known, type] : kTypes) {
    if (*name == known) return type;
  }
  rope.unsupported(key, "default, linear, dynamic, llama3, yarn, longrope");
}

// The factor by which yarn scales cos and sin where attention_factor is not given.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [&](double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; };
  return mscale != 0 && mscale_all_dim != 0 ? scale(mscale) / scale(mscale_all_dim) : scale(1);
}

void parse_yarn(const Fields& rope, int max_positions, RopeConfig& result) {
  // A factor that is there but null is the ratio of the two lengths; an absent one is an error.
  const auto factor = rope.find_number("factor", 1, kMaxFactor);
  result.factor =
      factor.value_or(static_cast<double>(max_positions) / result.original_max_positions);
  const double mscale = rope.find_number("mscale", 0, kMaxFactor).value_or(0);
  const double mscale_all_dim = rope.find_number("mscale_all_dim", 0, kMaxFactor).value_or(0);
  result.attention_factor =
      rope.find_number("attention_factor", 0, kMaxFactor)
          .value_or(yarn_attention_factor(result.factor, mscale, mscale_all_dim));
  // A zero is an absent value here, as it is to Python's `or`.
  const auto beta_or = [&](std::string_view key, double otherwise) {
    const double beta = rope.find_number(key, 0, kMaxFactor).value_or(0);
    return beta != 0 ? beta : otherwise;
  };
  result.beta_fast = beta_or("beta_fast", 32);
  result.beta_slow = beta_or("beta_slow", 1);
  result.truncate = rope.flag("truncate", true);
}

void parse_longrope(const Fields& rope, int max_positions, int head_dim, RopeConfig& result) {
  result.short_factor = rope.positive_floats("short_factor", head_dim / 2);
  result.long_factor = rope.positive_floats("long_factor", head_dim / 2);
  const double original = result.original_max_positions;
  const double factor =
      rope.find_number("factor", 1, kMaxFactor).value_or(max_positions / original);
  result.attention_factor =
      rope.find_number("attention_factor", 0, kMaxFactor)
          .value_or(factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original)));
}

void parse_llama3(const Fields& rope, RopeConfig& result) {
  result.factor = rope.number("factor", 1, kMaxFactor);
  result.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxFactor);
  result.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxFactor);
  if (result.high_freq_factor <= result.low_freq_factor) {
    rope.corrupt("high_freq_factor",
                 fmt::format("above low_freq_factor = {}", result.low_freq_factor));
  }
}

}  // namespace

// The parameters lie in `rope_scaling` with rope_theta beside it, or all in `rope_parameters`.
RopeConfig parse_rope(const Fields& config, const ModelConfig& model) {
  const auto is_given = [&](std::string_view key) {
    const Json* value = config.find(key);
    return value != nullptr && !(value->is_object() && value->empty());
  };
  const std::string_view key = is_given("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Fields rope = config.inner(key);

  for (const Fields* fields : {&config, &rope}) {
    if (fields->find_number("partial_rotary_factor", 0, kMaxFactor).value_or(1) != 1) {
      fields->unsupported("partial_rotary_factor", "1");
    }
  }
  const Json* object = config.find(key);
  if (object != nullptr && std::ranges::any_of(*object, &Json::is_object)) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: {}: parameters per layer type are not supported; supported: the same in all layers",
         config.where(), config.name(key));
  }

  RopeConfig result;
  const Fields& theta_fields = rope.find("rope_theta") != nullptr ? rope : config;
  result.theta = theta_fields.find_number("rope_theta", 1.001, 1e15).value_or(result.theta);
  result.type = parse_rope_type(rope);
  // Phi-3's spelling, the length outside of the dictionary, goes before the one inside.
  result.original_max_positions =
      config.find_integer("original_max_position_embeddings", 2, kMaxLength)
          .value_or(rope.find_integer("original_max_position_embeddings", 2, kMaxLength)
                        .value_or(model.max_positions));
  switch (result.type) {
    case RopeConfig::Type::kDefault:
      break;
    case RopeConfig::Type::kLinear:
    case RopeConfig::Type::kDynamic:
      result.factor = rope.number("factor", 1, kMaxFactor);
      break;
    case RopeConfig::Type::kLlama3:
      parse_llama3(rope, result);
      break;
    case RopeConfig::Type::kYarn:
      if (!rope.contains("factor")) rope.corrupt("factor", "a number from 1");
      parse_yarn(rope, model.max_positions, result);
      break;
    case RopeConfig::Type::kLongrope:
      parse_longrope(rope, model.max_positions, model.head_dim, result);
      break;
  }
  return result;
}

}  // namespace quantspec
