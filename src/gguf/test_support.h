// For tests, of other rooms too: makes GGUF files, good ones and hostile ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gguf/metadata.h"
#include "gguf/types.h"

namespace quantspec {

// The bytes of numbers, as files have them.
template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

// Writes what it is told, whether it makes sense or not. Members are what a test may falsify.
class GgufWriter {
 public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::size_t alignment = 32;  // of the data; general.alignment is a key like others
  std::optional<std::uint64_t> num_keys, num_tensors;

  // A scalar: bool, integers, float, double.
  template <typename Number>
  requires std::is_arithmetic_v<Number> GgufWriter& add(std::string_view key, Number number) {
    return add_raw(key, type_of<Number>(), bytes_of(std::vector<Copied<Number>>{number}));
  }
  GgufWriter& add(std::string_view key, std::string_view text) {
    return add_raw(key, GgufValueType::kText, text_bytes(text));
  }
  GgufWriter& add(std::string_view key, const char* text) {
    return add(key, std::string_view(text));
  }
  template <typename Number>
  requires std::is_arithmetic_v<Number> GgufWriter& add(std::string_view key,
                                                        const std::vector<Number>& numbers) {
    const std::vector<Copied<Number>> copy(numbers.begin(), numbers.end());
    return add_array(key, type_of<Number>(), numbers.size(), bytes_of(copy));
  }
  GgufWriter& add(std::string_view key, const std::vector<std::string>& texts) {
    std::string bytes;
    for (const auto& text : texts) bytes += text_bytes(text);
    return add_array(key, GgufValueType::kText, texts.size(), bytes);
  }

  // Any bytes as an array of so many elements, and as a value.
  GgufWriter& add_array(std::string_view key, GgufValueType type, std::uint64_t count,
                        const std::string& bytes) {
    return add_raw(key, GgufValueType::kArray,
                   number(static_cast<std::uint32_t>(type)) + number(count) + bytes);
  }
  GgufWriter& add_raw(std::string_view key, GgufValueType type, const std::string& bytes) {
    keys_ += text_bytes(key) + number(static_cast<std::uint32_t>(type)) + bytes;
    ++num_keys_;
    return *this;
  }

  // A tensor after those before it; `shape` begins with the inputs of a row.
  GgufWriter& tensor(std::string_view name, GgmlType type, const std::vector<std::int64_t>& shape,
                     const std::string& bytes) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    tensor_at(name, type, shape, data_.size());
    data_ += bytes;
    return *this;
  }
  // One that lies anywhere, and adds no bytes.
  GgufWriter& tensor_at(std::string_view name, GgmlType type,
                        const std::vector<std::int64_t>& shape, std::uint64_t offset) {
    entries_ += text_bytes(name) + number(static_cast<std::uint32_t>(shape.size())) +
                bytes_of(shape) + number(static_cast<std::uint32_t>(type)) + number(offset);
    ++num_tensors_;
    return *this;
  }
  GgufWriter& data(const std::string& bytes) {
    data_ += bytes;
    return *this;
  }

  std::string file() const {
    std::string file = magic + number(version) + number(num_tensors.value_or(num_tensors_)) +
                       number(num_keys.value_or(num_keys_)) + keys_ + entries_;
    if (num_tensors_ == 0) return file;
    file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data_;
  }

 private:
  template <typename Number>
  using Copied = std::conditional_t<std::is_same_v<Number, bool>, std::uint8_t, Number>;

  template <typename Number>
  static constexpr GgufValueType type_of() {
    using Type = GgufValueType;
    if constexpr (std::is_same_v<Number, bool>) return Type::kBool;
    if constexpr (std::is_same_v<Number, float>) return Type::kF32;
    if constexpr (std::is_same_v<Number, double>) return Type::kF64;
    constexpr bool kSigned = std::is_signed_v<Number>;
    if (sizeof(Number) == 1) return kSigned ? Type::kI8 : Type::kU8;
    if (sizeof(Number) == 2) return kSigned ? Type::kI16 : Type::kU16;
    if (sizeof(Number) == 4) return kSigned ? Type::kI32 : Type::kU32;
    return kSigned ? Type::kI64 : Type::kU64;
  }
  template <typename Number>
  static std::string number(Number number) {
    return bytes_of(std::vector<Number>{number});
  }
  static std::string text_bytes(std::string_view text) {
    return number(std::uint64_t{text.size()}) + std::string(text);
  }

  std::string keys_, entries_, data_;
  std::uint64_t num_keys_ = 0, num_tensors_ = 0;
};

}  // namespace quantspec
