// A fast hash of bytes: tells files apart and finds damage; no protection against malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace quantspec {

// XXH3, 64 bits (https://xxhash.com).
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

// The same of bytes that come piece by piece.
class Hasher {
 public:
  Hasher();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all that was added

 private:
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
};

}  // namespace quantspec
