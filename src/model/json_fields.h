// Typed, checked reading of a JSON object's keys. A null is an absent key, as it is in Python.
// Every error is one line that names the file, the key, what was expected and what was found.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace quantspec {

class Fields {
 public:
  // What messages call a key: an object may stand for a file that has other words for it.
  using Names = std::function<std::string(std::string_view key)>;

  // `where` names the object in messages. The object must outlive this. Throws kCorruptFile where
  // it is not an object.
  Fields(const Json& object, std::string where, Names names = as_they_are);
  // The object that a key holds, without keys where it is absent. Its key k is named as "key: k".
  // Throws kCorruptFile.
  Fields inner(std::string_view key) const;

  const std::string& where() const { return where_; }
  std::string name(std::string_view key) const { return names_(key); }

  bool contains(std::string_view key) const;  // null or not
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
  static std::string as_they_are(std::string_view key) { return std::string(key); }
  std::string found(std::string_view key) const;

  const Json& object_;
  std::string where_;
  Names names_;
};

}  // namespace quantspec
