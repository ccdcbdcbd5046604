// Options whose value is a list: numbers or names with commas between.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/option_values.h"

namespace quantspec::cli {

// "a,b,,c" -> {"a", "b", "", "c"}
inline std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first <= list.size();) {
    const std::size_t comma = std::min(list.find(',', first), list.size());
    parts.push_back(list.substr(first, comma - first));
    first = comma + 1;
  }
  return parts;
}

// Names of plans. A part that begins with a digit belongs to the one before: layer-skip:1,3-4.
inline std::vector<std::string> split_plans(const std::string& list) {
  std::vector<std::string> plans;
  for (const std::string& part : split_list(list)) {
    if (part.empty()) {
      throw UsageError(fmt::format(
          "--plan '{}': must be names with one comma between, none of them empty", list));
    }
    const bool layers = part[0] >= '0' && part[0] <= '9';
    if (layers && !plans.empty()) {
      plans.back() += "," + part;
    } else {
      plans.push_back(part);
    }
  }
  return plans;
}

// Lists of all times that it is given, in the place of `target`'s.
inline void add_plan_list(CLI::App& app, const std::string& help,
                          std::vector<std::string>& target) {
  const auto take = [&target](const std::vector<std::string>& lists) {
    target.clear();
    for (const std::string& list : lists) {
      for (std::string& plan : split_plans(list)) target.push_back(std::move(plan));
    }
  };
  app.add_option_function<std::vector<std::string>>("--plan", take, help)
      ->option_text("LIST")
      ->allow_extra_args(false);
}

// A list's value that is there already makes no sense.
template <typename T>
void add_to_list(const char* name, const std::string& text, const std::string& part, const T& value,
                 std::vector<T>& values) {
  if (std::ranges::find(values, value) != values.end()) {
    throw UsageError(fmt::format("{} '{}': has {} twice", name, text, part));
  }
  values.push_back(value);
}

// Numbers in [low, high]; `what` names them.
template <typename T>
void add_list(CLI::App& app, const std::string& names, const std::string& help, const char* what,
              std::vector<T>& target, T low, T high) {
  add_value(app, names, "LIST", help, [=, &target](const std::string& text) {
    const std::string name = long_name(names);
    std::vector<T> values;
    for (const std::string& part : split_list(text)) {
      const auto value = parse_number<T>(part);
      if (!value || *value < low || *value > high) {
        throw UsageError(fmt::format("{} '{}': must be {} from {} to {}, with commas between", name,
                                     text, what, low, high));
      }
      add_to_list(name.c_str(), text, part, *value, values);
    }
    target = std::move(values);
  });
}

// --draft-len: lengths in [least, the most there can be], and auto, which is nullopt.
inline void add_draft_lens(CLI::App& app, const std::string& help,
                           std::vector<std::optional<int>>& target, int least) {
  add_value(app, "--draft-len", "LIST", help, [=, &target](const std::string& text) {
    std::vector<std::optional<int>> lens;
    for (const std::string& part : split_list(text)) {
      const auto value = parse_number<int>(part);
      const bool fits = value && *value >= least && *value <= kMaxDraftLen;
      if (!fits && part != "auto") {
        throw UsageError(
            fmt::format("--draft-len '{}': must be auto or from {} to {}, with commas between",
                        text, least, kMaxDraftLen));
      }
      add_to_list("--draft-len", text, part, value, lens);
    }
    target = std::move(lens);
  });
}

}  // namespace quantspec::cli
