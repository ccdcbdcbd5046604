// A fast hash of bytes: tells files apart and finds damage; no protection against malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace quantspec {

// XXH3, 64 bits (https://xxhash.com).
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

// XXH3, 128 bits, in 32 hexadecimal digits.
std::string hash_text_128(std::string_view text);

// The first of bytes that come piece by piece.
class Hasher {
 public:
  Hasher();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all that was added

 private:
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
};

// For hash tables whose keys come from files and users: the hash differs from process to process,
// so that nobody can make a file of keys that all collide, which takes quadratic time.
struct TableHash {
  using is_transparent = void;  // a std::string_view finds a std::string
  std::size_t operator()(std::string_view key) const;
  std::size_t operator()(std::uint64_t key) const;
};

}  // namespace quantspec
