#include "model/json_fields.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"

namespace quantspec {

namespace {

// NOTE: as doubles, because an integer of a JSON file may be beyond 2^63; the bounds are exact.
bool is_number_in(const Json& value, double min, double max) {
  return value.is_number() && value.get<double>() >= min && value.get<double>() <= max;
}

bool is_integer_in(const Json& value, int min, int max) {
  return value.is_number_integer() && is_number_in(value, min, max);
}

}  // namespace

Fields::Fields(const Json& object, std::string where, Names names)
    : object_(object), where_(std::move(where)), names_(std::move(names)) {
  if (!object.is_object()) fail(ErrorKind::kCorruptFile, "{}: not a JSON object", where_);
}

Fields Fields::inner(std::string_view key) const {
  static const Json kEmpty = Json::object();
  const Json* object = find(key);
  if (object != nullptr && !object->is_object()) corrupt(key, "a JSON object");
  return Fields(object != nullptr ? *object : kEmpty, where_,
                [names = names_, outer = std::string(key)](std::string_view inner) {
                  return names(fmt::format("{}: {}", outer, inner));
                });
}

bool Fields::contains(std::string_view key) const { return object_.contains(key); }

const Json* Fields::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const std::string* Fields::find_string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) corrupt(key, "a string");
  return value->get_ptr<const std::string*>();
}

std::optional<bool> Fields::find_flag(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) corrupt(key, "true or false");
  return value->get<bool>();
}

std::optional<int> Fields::find_integer(std::string_view key, int min, int max) const {
  return find(key) == nullptr ? std::nullopt : std::optional(integer(key, min, max));
}

std::optional<double> Fields::find_number(std::string_view key, double min, double max) const {
  return find(key) == nullptr ? std::nullopt : std::optional(number(key, min, max));
}

std::optional<float> Fields::find_float(std::string_view key, float min, float max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!is_number_in(*value, min, max)) {
    corrupt(key, fmt::format("a number from {} to {}", min, max));
  }
  return static_cast<float>(value->get<double>());
}

int Fields::integer(std::string_view key, int min, int max) const {
  const Json* value = find(key);
  if (value == nullptr || !is_integer_in(*value, min, max)) {
    corrupt(key, fmt::format("an integer from {} to {}", min, max));
  }
  return value->get<int>();
}

double Fields::number(std::string_view key, double min, double max) const {
  const Json* value = find(key);
  if (value == nullptr || !is_number_in(*value, min, max)) {
    corrupt(key, fmt::format("a number from {} to {}", min, max));
  }
  return value->get<double>();
}

std::vector<int> Fields::integers(std::string_view key, int min, int max) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {integer(key, min, max)};
  const auto is_valid = [&](const Json& x) { return is_integer_in(x, min, max); };
  if (!std::all_of(value->begin(), value->end(), is_valid)) {
    corrupt(key, fmt::format("integers from {} to {}", min, max));
  }
  return value->get<std::vector<int>>();
}

std::vector<float> Fields::positive_floats(std::string_view key, int count) const {
  const Json* value = find(key);
  const auto is_positive = [](const Json& x) { return is_number_in(x, 1e-6, 1e6); };
  if (value == nullptr || !value->is_array() || value->size() != static_cast<std::size_t>(count) ||
      !std::all_of(value->begin(), value->end(), is_positive)) {
    corrupt(key, fmt::format("a list of {} positive numbers", count));
  }
  return value->get<std::vector<float>>();
}

void Fields::corrupt(std::string_view key, std::string_view expected) const {
  fail(ErrorKind::kCorruptFile, "{}: {} must be {}, found {}", where_, name(key), expected,
       found(key));
}

void Fields::unsupported(std::string_view key, std::string_view supported) const {
  fail(ErrorKind::kUnsupportedModel, "{}: {} = {} is not supported; supported: {}", where_,
       name(key), found(key), supported);
}

// The value of a key as a message shows it.
std::string Fields::found(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return "nothing";
  if (value->is_string()) return shown(value->get_ref<const std::string&>());
  return shortened(dump_json(*value), 60);
}

}  // namespace quantspec
