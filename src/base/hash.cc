#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>
#include <random>

namespace quantspec {

namespace {

std::uint64_t table_seed() {
  static const std::uint64_t seed = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return seed;
}

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hash_text_128(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Hasher::Hasher() : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

std::uint64_t Hasher::value() const { return XXH3_64bits_digest(state_.get()); }

std::size_t TableHash::operator()(std::string_view key) const {
  return XXH3_64bits_withSeed(key.data(), key.size(), table_seed());
}

std::size_t TableHash::operator()(std::uint64_t key) const {
  return XXH3_64bits_withSeed(&key, sizeof(key), table_seed());
}

}  // namespace quantspec
