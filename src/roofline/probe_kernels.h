// What the probe of this machine times: a stream of reads, and the inner loop of an fp32 matrix
// product, c += a b, over a tile that stays in the first-level cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quantspec::roofline {

inline constexpr int kDepth = 128;
inline constexpr int kMaxRows = 12;
inline constexpr int kMaxCols = 32;

// Kernels use the first of their rows and columns.
struct Tile {
  alignas(64) std::array<float, kDepth * kMaxRows> a;  // [kDepth, kMaxRows], all 1
  alignas(64) std::array<float, kDepth * kMaxCols> b;  // [kDepth, kMaxCols], all 2^-7
  alignas(64) std::array<float, kMaxRows * kMaxCols> c{};

  Tile();
  // A product adds kDepth 2^-7 = 1 to every element, exactly.
  bool is_done(int products) const { return c[0] == static_cast<float>(products); }
};

struct Kernels {
  std::uint64_t (*sum)(const std::uint64_t* words, std::size_t count);  // a multiple of 64
  void (*multiply)(Tile& tile);
  double flops;  // of a product
};
// Those for an instruction set, named as by cpu_instruction_sets().
Kernels choose_kernels(std::string_view instruction_set);

}  // namespace quantspec::roofline
