#include "base/hash.h"

#include <xxhash.h>

namespace quantspec {

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace quantspec
