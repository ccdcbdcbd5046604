// The target of a request: "/a%20b?c=d". Thread-safe: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantspec::net {

struct Target {
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
};

// nullopt: it is no path with a query, an escape is broken, or what is escaped is a control
// character or no UTF-8.
std::optional<Target> parse_target(std::string_view target);

}  // namespace quantspec::net
