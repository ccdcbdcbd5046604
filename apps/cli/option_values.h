// Options of a given kind of value, over CLI11: strict parsing, and messages that name the flag,
// what was typed and what would work. Of an option that is given twice the last counts.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/cli/limits.h"
#include "apps/cli/options.h"
#include "sampler/parameters.h"

namespace quantspec::cli {

inline constexpr int kNoLimit = std::numeric_limits<int>::max();

// All of `text`, or nothing.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

inline std::string long_name(const std::string& names) { return names.substr(names.find("--")); }

// `names` is "-n,--predict", `meta` what stands for the value in the help.
inline CLI::Option* add_value(CLI::App& app, const std::string& names, const char* meta,
                              const std::string& help,
                              std::function<void(const std::string&)> take) {
  return app.add_option_function<std::string>(names, std::move(take), help)
      ->option_text(meta)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

// A path. An empty one, as of a shell's variable that is not set, names nothing.
inline CLI::Option* add_path(CLI::App& app, const std::string& names, const char* meta,
                             const std::string& help, std::filesystem::path& target) {
  return add_value(app, names, meta, help, [=, &target](const std::string& text) {
    if (text.empty()) throw UsageError(fmt::format("{} '': must be a path", long_name(names)));
    target = text;
  });
}

// A whole number in [low, high] other than `except`.
template <typename Target>
void add_int(CLI::App& app, const std::string& names, const char* meta, const std::string& help,
             Target& target, int low, int high = kNoLimit, std::optional<int> except = {}) {
  add_value(app, names, meta, help, [=, &target](const std::string& text) {
    const auto value = parse_number<int>(text);
    if (value && *value >= low && *value <= high && value != except) {
      target = *value;
      return;
    }
    std::string range = fmt::format("from {} to {}", low, high);
    if (except) range += fmt::format(" other than {}", *except);
    throw UsageError(
        fmt::format("{} '{}': must be a whole number {}", long_name(names), text, range));
  });
}

template <typename Target>
void add_bytes(CLI::App& app, const std::string& name, const char* help, Target& target) {
  add_value(app, name, "N", help, [=, &target](const std::string& text) {
    const auto value = parse_number<std::size_t>(text);
    if (!value) throw UsageError(fmt::format("{} '{}': must be a whole number", name, text));
    target = *value;
  });
}

// A finite number; SamplingParams::validate() knows its range.
inline void add_float(CLI::App& app, const std::string& names, const std::string& help,
                      std::optional<float>& target) {
  add_value(app, names, "X", help, [=, &target](const std::string& text) {
    target = parse_number<float>(text);
    if (!target) {
      throw UsageError(fmt::format("{} '{}': must be a number", long_name(names), text));
    }
  });
}

// `part` of what was typed, `text`, as a budget.
inline KvBudget parse_draft_budget(const std::string& part, const std::string& text,
                                   const char* more = "") {
  const auto budget = KvBudget::parse(part);
  if (budget && budget->tokens(0) <= kMostContext) return *budget;
  throw UsageError(
      fmt::format("--draft-budget '{}': must be tokens, from 1 to {}, or a share such as 1/4{}",
                  text, kMostContext, more));
}

inline void add_draft_budget(CLI::App& app, const std::string& help, KvBudget& target) {
  add_value(app, "--draft-budget", "N|1/N", help,
            [&target](const std::string& text) { target = parse_draft_budget(text, text); });
}

inline void add_seed(CLI::App& app, const std::string& help,
                     std::function<void(std::uint64_t)> take) {
  add_value(app, "-s,--seed", "N", help, [take = std::move(take)](const std::string& text) {
    constexpr auto seed = sampling_param<&SamplingParams::seed>();
    const auto value = parse_number<std::uint64_t>(text);
    if (!value) throw UsageError(fmt::format("--seed '{}': must be {}", text, seed.range));
    take(*value);
  });
}

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

template <typename T, typename Target>
void add_choice(CLI::App& app, const std::string& names, const char* meta, const std::string& help,
                const Choices<T>& choices, Target& target) {
  add_value(app, names, meta, help, [=, &target](const std::string& text) {
    std::string known;
    for (const auto& [name, value] : choices) {
      if (name == text) {
        target = value;
        return;
      }
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
    }
    throw UsageError(fmt::format("{} '{}': must be one of {}", long_name(names), text, known));
  });
}

}  // namespace quantspec::cli
