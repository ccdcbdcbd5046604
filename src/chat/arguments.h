// Arguments of functions as what they must be.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/value.h"

namespace quantspec::jinja {

using Argument = std::optional<Value>;

inline bool is_given(const Argument& argument) {
  return argument.has_value() && !argument->is(Kind::kNone);
}
inline const Value& require(const Argument& argument, std::string_view function) {
  if (!argument) refuse(std::string(function) + " misses an argument");
  return *argument;
}
inline std::string_view text_of(const Value& value, std::string_view function) {
  if (value.is_undefined()) refuse(std::string(value.text()));
  if (!value.is_string())
    refuse(std::string(function) + " needs a str, got " + std::string(type_name(value)));
  return value.text();
}
inline std::string_view text_of(const Argument& argument, std::string_view function) {
  return text_of(require(argument, function), function);
}
inline std::int64_t int_of(const Argument& argument, std::int64_t otherwise,
                           std::string_view function) {
  if (!argument) return otherwise;
  if (argument->is_undefined()) refuse(std::string(argument->text()));
  if (!argument->is_integer())
    refuse(std::string(function) + " needs an int, got " + std::string(type_name(*argument)));
  return argument->as_int();
}
inline bool bool_of(const Argument& argument, bool otherwise) {
  return argument ? truth(*argument) : otherwise;
}

}  // namespace quantspec::jinja
