#include "gguf/metadata.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/shown.h"
#include "gguf/reader.h"

namespace quantspec {

namespace {

using Type = GgufValueType;

constexpr std::size_t kMaxKeyBytes = 65535;  // as the format has it
// Of an array, so of a vocabulary: tokenizers count bytes in less than size_t elsewhere.
constexpr std::size_t kMaxElementBytes = 65536;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 28;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 24;  // 60 times a large vocabulary
constexpr std::size_t kLeastTextBytes = 8;                      // its length

constexpr std::string_view kNames[] = {"u8",   "i8",   "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "text", "array", "u64", "i64", "f64"};
constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: it varies

std::size_t bytes_of(Type type) { return kBytes[static_cast<std::size_t>(type)]; }
std::string_view name_of(Type type) { return kNames[static_cast<std::size_t>(type)]; }

template <typename To, typename From>
std::vector<To> convert(std::span<const std::byte> bytes, std::uint64_t count) {
  std::vector<To> out(count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    From from;
    std::memcpy(&from, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(from);
  }
  return out;
}

// The elements of an array (a scalar is one of 1) as numbers of the type of the first argument, or
// nothing where they are no such numbers.
std::optional<std::vector<std::int64_t>> numbers_as(std::int64_t, Type type,
                                                    std::span<const std::byte> bytes,
                                                    std::uint64_t count) {
  using To = std::int64_t;
  switch (type) {
    case Type::kU8:
      return convert<To, std::uint8_t>(bytes, count);
    case Type::kI8:
      return convert<To, std::int8_t>(bytes, count);
    case Type::kU16:
      return convert<To, std::uint16_t>(bytes, count);
    case Type::kI16:
      return convert<To, std::int16_t>(bytes, count);
    case Type::kU32:
      return convert<To, std::uint32_t>(bytes, count);
    case Type::kI32:
      return convert<To, std::int32_t>(bytes, count);
    case Type::kI64:
      return convert<To, std::int64_t>(bytes, count);
    case Type::kU64: {
      auto numbers = convert<To, std::int64_t>(bytes, count);
      const bool fit = std::all_of(numbers.begin(), numbers.end(), [](To n) { return n >= 0; });
      return fit ? std::optional(std::move(numbers)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

template <typename To>
requires std::is_floating_point_v<To> std::optional<std::vector<To>> numbers_as(
    To, Type type, std::span<const std::byte> bytes, std::uint64_t count) {
  if (type == Type::kF32) return convert<To, float>(bytes, count);
  if (type == Type::kF64) return convert<To, double>(bytes, count);
  return std::nullopt;
}

std::optional<std::vector<bool>> numbers_as(bool, Type type, std::span<const std::byte> bytes,
                                            std::uint64_t count) {
  if (type == Type::kBool) return convert<bool, std::uint8_t>(bytes, count);
  return std::nullopt;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename To>
std::optional<To> first_of(const std::optional<std::vector<To>>& values) {
  if (!values) return std::nullopt;
  return values->front();
}

}  // namespace

GgufMetadata::GgufMetadata(GgufReader& reader, std::uint64_t count, std::string_view where)
    : where_(where) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view key = reader.text(kMaxKeyBytes, "a metadata key");
    const Value value = read_value(reader, key);
    if (values_.emplace(key, value).second) continue;
    fail(ErrorKind::kCorruptFile, "{}: metadata key {} stands twice", where, shown(key));
  }
}

GgufMetadata::Value GgufMetadata::read_value(GgufReader& reader, std::string_view key) const {
  const auto type = static_cast<Type>(reader.number<std::uint32_t>("metadata key", key));
  if (type > Type::kF64) {
    fail(ErrorKind::kCorruptFile, "{}: metadata key {} has a value of type {}; types are 0 to 12",
         where_, shown(key), static_cast<std::uint32_t>(type));
  }
  if (type == Type::kArray) return read_array(reader, key);
  if (type == Type::kText) {
    const auto text = reader.text(kMaxTextBytes, "metadata key", key);
    return {type, false, 1, std::as_bytes(std::span(text))};
  }
  const auto bytes = reader.take(bytes_of(type), "metadata key", key);
  if (type == Type::kBool) require_bools(key, bytes);
  return {type, false, 1, bytes};
}

GgufMetadata::Value GgufMetadata::read_array(GgufReader& reader, std::string_view key) const {
  const auto type = static_cast<Type>(reader.number<std::uint32_t>("metadata key", key));
  if (type > Type::kF64 || type == Type::kArray) {
    fail(ErrorKind::kCorruptFile,
         "{}: metadata key {} is an array of type {}; elements are numbers, bools or texts", where_,
         shown(key), static_cast<std::uint32_t>(type));
  }
  const auto count = reader.number<std::uint64_t>("metadata key", key);
  const bool is_text = type == Type::kText;
  const std::size_t least = is_text ? kLeastTextBytes : bytes_of(type);
  if (count > kMaxElements) {
    fail(ErrorKind::kCorruptFile,
         "{}: metadata key {} is an array of {} elements; {} are the most that are read", where_,
         shown(key), count, kMaxElements);
  }
  if (count > reader.left() / least) {
    fail(ErrorKind::kCorruptFile,
         "{}: metadata key {} is an array of {} elements, for which {} bytes are left; the file is "
         "not whole",
         where_, shown(key), count, reader.left());
  }
  if (!is_text) {
    const auto bytes = reader.take(count * least, "metadata key", key);
    if (type == Type::kBool) require_bools(key, bytes);
    return {type, true, count, bytes};
  }
  GgufReader elements = reader;  // to find out how long they are
  for (std::uint64_t i = 0; i < count; ++i) elements.text(kMaxElementBytes, "metadata key", key);
  const std::size_t bytes = elements.position() - reader.position();
  return {type, true, count, reader.take(bytes, "metadata key", key)};
}

void GgufMetadata::require_bools(std::string_view key, std::span<const std::byte> bytes) const {
  for (const std::byte byte : bytes) {
    if (byte <= std::byte{1}) continue;
    fail(ErrorKind::kCorruptFile, "{}: metadata key {} has a bool of value {}; it must be 0 or 1",
         where_, shown(key), static_cast<int>(byte));
  }
}

bool GgufMetadata::is_array(std::string_view key) const {
  const auto found = values_.find(key);
  return found != values_.end() && found->second.is_array;
}

std::vector<std::string> GgufMetadata::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

void GgufMetadata::fail_for_type(std::string_view key, const Value& value,
                                 std::string_view wanted) const {
  fail(ErrorKind::kCorruptFile, "{}: metadata key {} has type {}{}; it must be {}", where_,
       shown(key), value.is_array ? "array of " : "", name_of(value.type), wanted);
}

const GgufMetadata::Value* GgufMetadata::find(std::string_view key, bool is_array,
                                              std::string_view wanted) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  if (found->second.is_array != is_array) fail_for_type(key, found->second, wanted);
  return &found->second;
}

template <typename To>
std::optional<std::vector<To>> GgufMetadata::converted(std::string_view key, bool is_array,
                                                       std::string_view wanted) const {
  const Value* value = find(key, is_array, wanted);
  if (value == nullptr) return std::nullopt;
  auto numbers = numbers_as(To{}, value->type, value->bytes, value->count);
  if (!numbers) fail_for_type(key, *value, wanted);
  return numbers;
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  return first_of(converted<std::int64_t>(key, false, "an integer below 2^63"));
}

std::optional<double> GgufMetadata::real(std::string_view key) const {
  return first_of(converted<double>(key, false, "an f32 or f64"));
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  return first_of(converted<bool>(key, false, "a bool"));
}

std::optional<std::string_view> GgufMetadata::text(std::string_view key) const {
  const Value* value = find(key, false, "a text");
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kText) fail_for_type(key, *value, "a text");
  return text_of(value->bytes);
}

std::optional<std::vector<std::int64_t>> GgufMetadata::integers(std::string_view key) const {
  return converted<std::int64_t>(key, true, "an array of integers below 2^63");
}

std::optional<std::vector<float>> GgufMetadata::reals(std::string_view key) const {
  return converted<float>(key, true, "an array of f32 or f64");
}

std::optional<std::vector<bool>> GgufMetadata::flags(std::string_view key) const {
  return converted<bool>(key, true, "an array of bool");
}

std::optional<std::vector<std::string_view>> GgufMetadata::texts(std::string_view key) const {
  const Value* value = find(key, true, "an array of texts");
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kText) fail_for_type(key, *value, "an array of texts");
  std::vector<std::string_view> texts(value->count);
  // Lengths are checked again: a file that is being written to need not be what it was.
  GgufReader reader(value->bytes, where_);
  for (auto& text : texts) text = reader.text(kMaxElementBytes, "metadata key", key);
  return texts;
}

std::optional<std::uint32_t> GgufMetadata::u32(std::string_view key) const {
  const Value* value = find(key, false, "a u32");
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kU32) fail_for_type(key, *value, "a u32");
  return static_cast<std::uint32_t>(*integer(key));
}

}  // namespace quantspec
