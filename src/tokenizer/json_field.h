// A JSON value that knows its place, so that every complaint names the file and the key.
// REQUIRES: the JSON value and the file name outlive the field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_fwd.h"

namespace quantspec {

class JsonField {
 public:
  JsonField(const Json& value, std::string_view file, std::string key = "")
      : value_(&value), file_(file), key_(std::move(key)) {}

  const Json& json() const { return *value_; }

  // A member of an object. at() throws kCorruptFile when it is missing; find() takes a missing one
  // and null as the same.
  JsonField at(std::string_view key) const;
  std::optional<JsonField> find(std::string_view key) const;

  // The elements of an array, made one at a time.
  auto elements() const {
    return std::views::iota(std::size_t{0}, num_elements()) |
           std::views::transform([field = *this](std::size_t i) { return field.element(i); });
  }

  // The value, of the kind asked for; kCorruptFile for another kind.
  const std::string& text() const;
  bool boolean() const;
  std::int64_t integer() const;

  // The optional member `key`, or `otherwise`.
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string text_or(std::string_view key, std::string_view otherwise) const;

  // Where it is: the file and the path of keys, in which names that are not of the format are cut.
  std::string place() const;
  [[noreturn]] void corrupt(std::string_view what) const;
  // `what` names the feature, `supported` what would work.
  [[noreturn]] void unsupported(std::string_view what, std::string_view supported) const;

 private:
  std::size_t num_elements() const;  // throws kCorruptFile where it is no array
  JsonField element(std::size_t index) const;

  const Json* value_;
  std::string_view file_;
  std::string key_;  // "model.vocab"
};

}  // namespace quantspec
