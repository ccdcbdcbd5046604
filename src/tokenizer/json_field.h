// A JSON value that knows its place, so that every complaint names the file and the key.
// REQUIRES: the JSON value and the file name outlive the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

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

  // The elements of an array.
  std::vector<JsonField> elements() const;

  // The value, of the kind asked for; kCorruptFile for another kind.
  const std::string& text() const;
  bool boolean() const;
  std::int64_t integer() const;

  // The optional member `key`, or `otherwise`.
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string text_or(std::string_view key, std::string_view otherwise) const;

  [[noreturn]] void corrupt(std::string_view what) const;
  // `what` names the feature, `supported` what would work.
  [[noreturn]] void unsupported(std::string_view what, std::string_view supported) const;

 private:
  const Json* value_;
  std::string_view file_;
  std::string key_;  // "model.vocab"
};

}  // namespace quantspec
