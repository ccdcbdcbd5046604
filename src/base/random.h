// Counter-based randomness: every draw is a pure function of (seed, position, stream, index), so
// that a token's noise depends on where it stands and not on how it came to be computed. Draft and
// target share it in `coupled` sampling, and CPU and GPU can compute the same bits: integer
// arithmetic only. Philox4x32-10, Salmon et al., SC'11.
#pragma once

#include <array>
#include <cstdint>

namespace quantspec {

// What a draw is for. Draws of different streams are independent.
enum class RandomStream : std::uint32_t { kSample = 0, kDraft = 1, kAccept = 2, kResidual = 3 };

// Four independent 32-bit words.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The generator of one sequence. Thread-safe: it has no state but its seed.
class CounterRng {
 public:
  explicit constexpr CounterRng(std::uint64_t seed) : seed_(seed) {}

  // Word `index` of the draws for `position`. position >= 0.
  constexpr std::uint32_t bits(std::int64_t position, RandomStream stream,
                               std::uint32_t index = 0) const {
    return block(position, stream, index / 4)[index % 4];
  }
  // Four words at once: words 4 * block_index .. 4 * block_index + 3.
  constexpr std::array<std::uint32_t, 4> block(std::int64_t position, RandomStream stream,
                                               std::uint32_t block_index) const {
    const auto p = static_cast<std::uint64_t>(position);
    return philox4x32({block_index, static_cast<std::uint32_t>(p),
                       static_cast<std::uint32_t>(p >> 32), static_cast<std::uint32_t>(stream)},
                      {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  }
  // Uniform in (0, 1): the middle of one of 2^23 cells, exact in fp32; never 0 or 1.
  constexpr float uniform(std::int64_t position, RandomStream stream,
                          std::uint32_t index = 0) const {
    return to_unit(bits(position, stream, index));
  }
  static constexpr float to_unit(std::uint32_t word) {
    return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
  }

 private:
  std::uint64_t seed_;
};

}  // namespace quantspec
