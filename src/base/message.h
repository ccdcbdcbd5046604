// Text that may name fields (base/field.h). Who shows it says how they are called: of
//
//     Message::format("{} is {}; {} 0.8 works", field::kTemperature, -1, field::kTemperature)
//
// text() makes "temperature is -1; temperature 0.8 works", and the command line's table
// "--temp is -1; --temp 0.8 works". A value of its own, as a string is.
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/field.h"

namespace quantspec {

// What an argument of a message is formatted as, so what its place in the format may ask for.
template <typename T>
using Printed =
    std::conditional_t<std::is_arithmetic_v<T> && !std::is_same_v<T, char>, T, std::string>;
template <typename... Args>
using MessageFormat = fmt::format_string<Printed<Args>...>;

class Message {
 public:
  Message() = default;
  // As it is. No text of a file or a user can be taken for a field.
  template <std::convertible_to<std::string_view> Text>
  Message(const Text& text) : marked_(unmarked(text)) {}

  // Arguments are what fmt can format, fields, and other messages.
  template <typename... Args>
  static Message format(MessageFormat<Args...> format, const Args&... args) {
    Message message;
    message.marked_ = substitute(format, printed(args)...);
    return message;
  }

  std::string text(FieldNames names = plain_name) const;
  // What it is about: the field with which it begins. REQUIRES: this message outlives it.
  std::optional<Field> subject() const;
  bool empty() const { return marked_.empty(); }

  Message& operator+=(const Message& more);
  // Without the first place where `part` stands, if any.
  Message without(const Message& part) const;
  bool operator==(const Message&) const = default;

 private:
  static std::string marked(Field field);
  static std::string unmarked(std::string_view text);

  template <typename T>
  static Printed<T> printed(const T& value) {
    if constexpr (std::is_same_v<T, Field>) {
      return marked(value);
    } else if constexpr (std::is_same_v<T, Message>) {
      return value.marked_;
    } else if constexpr (std::is_same_v<T, Printed<T>> && !std::is_same_v<T, std::string>) {
      return value;
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
      return unmarked(value);
    } else {
      return unmarked(substitute("{}", value));
    }
  }
  static std::string substitute(fmt::string_view format, const auto&... printed) {
    return fmt::vformat(format, fmt::make_format_args(printed...));
  }

  std::string marked_;  // each field is a mark, its plain name and a zero
};

}  // namespace quantspec
