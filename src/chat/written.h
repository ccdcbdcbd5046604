// Values as text: as Python's str() and repr() write them, and as its json.dumps() does.
// Thread-safe: pure functions.
#pragma once

#include <optional>
#include <string>

#include "chat/value.h"

namespace quantspec::jinja {

// str(). Throws for what has no text that means anything: functions, generators.
std::string written(const Value& value, Memory& memory);
// repr()
std::string quoted(const Value& value, Memory& memory);
std::string written_float(double value);

struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent;  // of a level; nullopt: on one line
  std::optional<std::string> item_separator, key_separator;
  bool sorted = false;
};
std::string written_json(const Value& value, const JsonStyle& style, Memory& memory);

}  // namespace quantspec::jinja
