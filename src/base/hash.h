// A fast hash of bytes: tells files apart and finds damage; no protection against malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quantspec {

// XXH3, 64 bits (https://xxhash.com).
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

}  // namespace quantspec
