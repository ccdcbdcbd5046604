// Typed, checked reading of a JSON object's keys. A null is an absent key, as it is in Python.
// Every error is one line that names the file, the key, what was expected and what was found.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quantspec {

class Fields {
 public:
  // `where` names the object in messages. The object must outlive this. Throws kCorruptFile where
  // it is not an object.
  Fields(const Json& object, std::string where);

  const std::string& where() const { return where_; }

  bool contains(std::string_view key) const { return object_.contains(key); }  // null or not
  // The readers throw kCorruptFile for a value of another type or out of [min, max].
  const Json* find(std::string_view key) const;  // null: absent
  const std::string* find_string(std::string_view key) const;
  std::optional<bool> find_flag(std::string_view key) const;
  std::optional<int> find_integer(std::string_view key, int min, int max) const;
  std::optional<double> find_number(std::string_view key, double min, double max) const;
  std::optional<float> find_float(std::string_view key, float min, float max) const;
  bool flag(std::string_view key, bool otherwise) const {
    return find_flag(key).value_or(otherwise);
  }
  // The same for a key that must be there.
  int integer(std::string_view key, int min, int max) const;
  double number(std::string_view key, double min, double max) const;
  // One integer or a list of them; absent: none.
  std::vector<int> integers(std::string_view key, int min, int max) const;
  // A list of `count` numbers that must be there.
  std::vector<float> positive_floats(std::string_view key, int count) const;

  [[noreturn]] void corrupt(std::string_view key, std::string_view expected) const;
  [[noreturn]] void unsupported(std::string_view key, std::string_view supported) const;

 private:
  std::string found(std::string_view key) const;

  const Json& object_;
  std::string where_;
};

}  // namespace quantspec
