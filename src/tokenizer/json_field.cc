#include "tokenizer/json_field.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"

namespace quantspec {

namespace {

constexpr std::size_t kMostOfKey = 40;  // the format's own are shorter

// The path of a member. Keys that the file's author chose are quoted and cut.
std::string path_to(const std::string& path, std::string_view key) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (key.size() > kMostOfKey || !std::ranges::all_of(key, is_plain)) {
    return fmt::format("{}[{}]", path, shown(key));
  }
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

}  // namespace

JsonField JsonField::at(std::string_view key) const {
  if (!value_->is_object()) corrupt("is not an object");
  const auto member = value_->find(std::string(key));
  if (member == value_->end()) corrupt(fmt::format("has no key {}", shown(key)));
  return {*member, file_, path_to(key_, key)};
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  if (!value_->is_object()) corrupt("is not an object");
  const auto member = value_->find(std::string(key));
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return at(key);
}

std::size_t JsonField::num_elements() const {
  if (!value_->is_array()) corrupt("is not an array");
  return value_->size();
}

JsonField JsonField::element(std::size_t index) const {
  return {(*value_)[index], file_, fmt::format("{}[{}]", key_, index)};
}

const std::string& JsonField::text() const {
  if (!value_->is_string()) corrupt("is not a string");
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) corrupt("is neither true nor false");
  return value_->get<bool>();
}

std::int64_t JsonField::integer() const {
  if (!value_->is_number_integer()) corrupt("is not an integer");
  return value_->get<std::int64_t>();
}

bool JsonField::boolean_or(std::string_view key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

std::string JsonField::text_or(std::string_view key, std::string_view otherwise) const {
  const auto member = find(key);
  return member ? member->text() : std::string(otherwise);
}

std::string JsonField::place() const {
  return fmt::format("{}: {}", file_, key_.empty() ? "the file" : key_);
}

void JsonField::corrupt(std::string_view what) const {
  fail(ErrorKind::kCorruptFile, "{} {}", place(), what);
}

void JsonField::unsupported(std::string_view what, std::string_view supported) const {
  fail(ErrorKind::kUnsupportedModel, "{}: {} is not supported; supported: {}", place(), what,
       supported);
}

}  // namespace quantspec
