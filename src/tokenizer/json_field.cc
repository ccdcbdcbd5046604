#include "tokenizer/json_field.h"

#include "base/error.h"

namespace quantspec {

JsonField JsonField::at(std::string_view key) const {
  if (!value_->is_object()) corrupt("is not an object");
  const auto member = value_->find(std::string(key));
  if (member == value_->end()) corrupt(fmt::format("has no key \"{}\"", key));
  return {*member, file_, key_.empty() ? std::string(key) : fmt::format("{}.{}", key_, key)};
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  if (!value_->is_object()) corrupt("is not an object");
  const auto member = value_->find(std::string(key));
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return at(key);
}

std::vector<JsonField> JsonField::elements() const {
  if (!value_->is_array()) corrupt("is not an array");
  std::vector<JsonField> fields;
  fields.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    fields.emplace_back((*value_)[i], file_, fmt::format("{}[{}]", key_, i));
  }
  return fields;
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

void JsonField::corrupt(std::string_view what) const {
  fail(ErrorKind::kCorruptFile, "{}: {} {}", file_, key_.empty() ? "the file" : key_, what);
}

void JsonField::unsupported(std::string_view what, std::string_view supported) const {
  fail(ErrorKind::kUnsupportedModel, "{}: {}: {} is not supported; supported: {}", file_,
       key_.empty() ? "the file" : key_, what, supported);
}

}  // namespace quantspec
