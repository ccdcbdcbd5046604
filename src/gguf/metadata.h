// The metadata of a GGUF file: keys and values of known types, which stay where the file is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quantspec {

class GgufReader;

enum class GgufValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
};

// Each getter gives nothing where the key is missing, and throws kCorruptFile, naming the key,
// where its value is of another type. Texts lie in the file: they live as long as its mapping does.
// Thread-safe after construction.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  // Reads so many keys and values. `where` (a path) is for messages. Throws kCorruptFile.
  GgufMetadata(GgufReader& reader, std::uint64_t count, std::string_view where);

  bool has(std::string_view key) const { return values_.contains(key); }
  bool is_array(std::string_view key) const;
  std::vector<std::string> keys() const;  // in order of the alphabet

  // Of any width, signed or not.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  // Arrays of these.
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<float>> reals(std::string_view key) const;
  std::optional<std::vector<bool>> flags(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;

  // The one key whose type the format prescribes: kCorruptFile where it is no u32.
  std::optional<std::uint32_t> u32(std::string_view key) const;

 private:
  struct Value {
    GgufValueType type;  // of an array: of its elements
    bool is_array;
    std::uint64_t count;               // elements of an array; 1
    std::span<const std::byte> bytes;  // of a text without its length, of an array without its head
  };
  Value read_value(GgufReader& reader, std::string_view key) const;
  Value read_array(GgufReader& reader, std::string_view key) const;
  void require_bools(std::string_view key, std::span<const std::byte> bytes) const;
  // Null where the key is missing. Throws where it is one value and an array is wanted, or vice
  // versa.
  const Value* find(std::string_view key, bool is_array, std::string_view wanted) const;
  template <typename To>
  std::optional<std::vector<To>> converted(std::string_view key, bool is_array,
                                           std::string_view wanted) const;
  [[noreturn]] void fail_for_type(std::string_view key, const Value& value,
                                  std::string_view wanted) const;

  std::string where_;
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace quantspec
