// SHA-256 (FIPS 180-4), for what must not be found again from its hash: keys of users. Slow beside
// base/hash.h, which is for all else. Thread-safe: a pure function.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace quantspec {

using Sha256 = std::array<std::uint8_t, 32>;

Sha256 sha256(std::string_view bytes);
std::string hex(const Sha256& digest);

// Whether they are equal, in a time that does not tell where they differ.
bool equal_in_constant_time(const Sha256& a, const Sha256& b);

}  // namespace quantspec
