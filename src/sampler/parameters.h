// Every sampling parameter once: its names, its bounds, and who reads it. What validates, prints or
// documents parameters goes through this table; a field of SamplingParams that is not in it does
// not compile, nor does a backend that does not say that it reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/field.h"
#include "sampler/fields.h"
#include "sampler/sampling_params.h"

namespace quantspec {

template <typename T>
struct SamplingParam {
  std::string_view name;  // in JSON
  Field field;
  T SamplingParams::*member;
  T low;  // the least that it may be
  T high;
  std::string_view range;  // the same, for messages
};

// Bounds of floats: no model wants more, and what they keep out overflows (a logit divided by a
// penalty of 1e-38 is an infinity).
inline constexpr std::tuple kSamplingParams = {
    SamplingParam<float>{"temperature", field::kTemperature, &SamplingParams::temperature, 0, 1000,
                         "from 0 (greedy) to 1000"},
    SamplingParam<int>{"top_k", field::kTopK, &SamplingParams::top_k, 0,
                       std::numeric_limits<int>::max(), "0 (off) or more"},
    SamplingParam<float>{"top_p", field::kTopP, &SamplingParams::top_p, 1e-6f, 1,
                         "from 1e-6 to 1 (off)"},
    SamplingParam<float>{"min_p", field::kMinP, &SamplingParams::min_p, 0, 1, "from 0 (off) to 1"},
    SamplingParam<float>{"repeat_penalty", field::kRepeatPenalty, &SamplingParams::repeat_penalty,
                         0.01f, 100, "from 0.01 to 100; 1 is off"},
    SamplingParam<int>{"repeat_last_n", field::kRepeatLastN, &SamplingParams::repeat_last_n, -1,
                       std::numeric_limits<int>::max(), "-1 (all), 0 (off) or more"},
    SamplingParam<float>{"presence_penalty", field::kPresencePenalty,
                         &SamplingParams::presence_penalty, -2, 2, "from -2 to 2; 0 is off"},
    SamplingParam<float>{"frequency_penalty", field::kFrequencyPenalty,
                         &SamplingParams::frequency_penalty, -2, 2, "from -2 to 2; 0 is off"},
    SamplingParam<std::uint64_t>{"seed", field::kSeed, &SamplingParams::seed, 0,
                                 std::numeric_limits<std::uint64_t>::max(),
                                 "a whole number from 0 to 2^64 - 1"},
};

// Calls visit(parameter) for each, in the order of the table.
template <typename Visit>
constexpr void for_each_sampling_param(const Visit& visit) {
  std::apply([&](const auto&... param) { (visit(param), ...); }, kSamplingParams);
}

// The row of the table that `member` is; it does not compile where there is none.
template <auto member>
consteval auto sampling_param() {
  return std::apply(
      [](const auto&... param) {
        using Value = std::remove_reference_t<decltype(SamplingParams{}.*member)>;
        SamplingParam<Value> found{};
        const auto take = [&](const auto& one) {
          if constexpr (std::is_same_v<decltype(one.member), decltype(found.member)>) {
            if (one.member == member) found = one;
          }
        };
        (take(param), ...);
        return found;
      },
      kSamplingParams);
}

namespace sampling_fields {

struct Any {
  template <typename T>
  operator T() const;
};

template <typename T, typename... Values>
consteval std::size_t count() {
  if constexpr (requires { T{Values{}..., Any{}}; }) {
    return count<T, Values..., Any>();
  } else {
    return sizeof...(Values);
  }
}

}  // namespace sampling_fields

inline constexpr std::size_t kNumSamplingParams = std::tuple_size_v<decltype(kSamplingParams)>;
static_assert(sampling_fields::count<SamplingParams>() == kNumSamplingParams,
              "every field of SamplingParams is in the table");

// For a static_assert beside each implementation of to_probabilities() and of the draws: true where
// `members` are all parameters. Who adds one must look at each of them.
template <auto... members>
consteval bool are_all_sampling_params() {
  bool all = sizeof...(members) == kNumSamplingParams;
  const auto is_listed = [](const auto& param) {
    bool listed = false;
    const auto compare = [&](auto member) {
      if constexpr (std::is_same_v<decltype(member), std::remove_cvref_t<decltype(param.member)>>) {
        listed |= member == param.member;
      }
    };
    (compare(members), ...);
    return listed;
  };
  for_each_sampling_param([&](const auto& param) { all = all && is_listed(param); });
  return all;
}

}  // namespace quantspec
