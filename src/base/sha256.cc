#include "base/sha256.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace quantspec {

namespace {

using State = std::array<std::uint32_t, 8>;
constexpr std::size_t kBlock = 64;  // bytes, as the standard calls them

constexpr bool is_prime(std::uint32_t n) {
  for (std::uint32_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

template <std::size_t N>
constexpr std::array<std::uint32_t, N> primes() {
  std::array<std::uint32_t, N> found{};
  std::uint32_t next = 2;
  for (std::uint32_t& prime : found) {
    while (!is_prime(next)) ++next;
    prime = next++;
  }
  return found;
}

// The first 32 bits of the fraction of n's root of this degree: the largest r with
// r^degree <= n * 2^(32 * degree), without its whole part (sections 4.2.2 and 5.3.3).
constexpr std::uint32_t root_fraction(std::uint32_t n, int degree) {
  using Wide = unsigned __int128;
  const Wide wanted = static_cast<Wide>(n) << (32 * degree);
  Wide root = 0;
  for (int bit = 36; bit >= 0; --bit) {
    const Wide tried = root | (static_cast<Wide>(1) << bit);
    Wide power = tried;
    for (int i = 1; i < degree; ++i) power *= tried;
    if (power <= wanted) root = tried;
  }
  return static_cast<std::uint32_t>(root);
}

constexpr auto kRoundConstants = [] {
  auto constants = primes<64>();
  for (std::uint32_t& constant : constants) constant = root_fraction(constant, 3);
  return constants;
}();

constexpr State kInitial = [] {
  auto state = primes<8>();
  for (std::uint32_t& word : state) word = root_fraction(word, 2);
  return state;
}();

// Section 6.2.2.
void compress(State& state, const std::uint8_t* block) {
  std::array<std::uint32_t, 64> w;
  for (int t = 0; t < 16; ++t) {
    w[t] = std::uint32_t{block[4 * t]} << 24 | std::uint32_t{block[4 * t + 1]} << 16 |
           std::uint32_t{block[4 * t + 2]} << 8 | block[4 * t + 3];
  }
  for (int t = 16; t < 64; ++t) {
    const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
    const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

Sha256 sha256(std::string_view bytes) {
  State state = kInitial;
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::size_t left = bytes.size();
  for (; left >= kBlock; left -= kBlock, data += kBlock) compress(state, data);
  std::array<std::uint8_t, 2 * kBlock> end{};  // what is left, a one, zeros and the length
  if (left > 0) std::memcpy(end.data(), data, left);
  end[left] = 0x80;
  const std::size_t size = left + 9 <= kBlock ? kBlock : 2 * kBlock;
  for (int i = 0; i < 8; ++i) end[size - 1 - i] = static_cast<std::uint8_t>(bits >> (8 * i));
  for (std::size_t at = 0; at < size; at += kBlock) compress(state, end.data() + at);
  Sha256 digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

std::string hex(const Sha256& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool equal_in_constant_time(const Sha256& a, const Sha256& b) {
  std::uint8_t differs = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ b[i];
  return differs == 0;
}

}  // namespace quantspec
