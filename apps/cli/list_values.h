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
    const bool layers = !part.empty() && part[0] >= '0' && part[0] <= '9';
    if (layers && !plans.empty()) {
      plans.back() += "," + part;
    } else {
      plans.push_back(part);
    }
  }
  return plans;
}

// Numbers in [low, high]; `what` names them.
template <typename T>
void add_list(CLI::App& app, const std::string& names, const std::string& help, const char* what,
              std::vector<T>& target, T low, T high) {
  add_value(app, names, "LIST", help, [=, &target](const std::string& text) {
    std::vector<T> values;
    for (const std::string& part : split_list(text)) {
      const auto value = parse_number<T>(part);
      if (!value || *value < low || *value > high) {
        throw UsageError(fmt::format("{} '{}': must be {} from {} to {}, with commas between",
                                     long_name(names), text, what, low, high));
      }
      values.push_back(*value);
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
      const bool fits = value && *value >= least && *value <= DraftControl::kMaxDraftLen;
      if (!fits && part != "auto") {
        throw UsageError(
            fmt::format("--draft-len '{}': must be auto or from {} to {}, with commas between",
                        text, least, DraftControl::kMaxDraftLen));
      }
      lens.push_back(value);
    }
    target = std::move(lens);
  });
}

}  // namespace quantspec::cli
