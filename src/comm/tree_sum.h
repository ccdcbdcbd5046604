// The order in which ranks' partial sums are added, whoever brings them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace quantspec {

inline constexpr std::size_t kSumBlock = 1024;  // floats that are added at a time

// The sum of ranks [begin, end): a balanced tree, whose left half is a power of two. place(rank):
// the rank's floats, of any alignment; those from `first` on are meant. count: at most kSumBlock.
template <typename Place>
void sum_of_ranks(const Place& place, int begin, int end, std::size_t first, std::size_t count,
                  float* out) {
  if (end - begin == 1) {
    std::memcpy(out, place(begin) + first * sizeof(float), count * sizeof(float));
    return;
  }
  const int middle =
      begin + static_cast<int>(std::bit_ceil(static_cast<unsigned>(end - begin)) / 2);
  std::array<float, kSumBlock> right;
  sum_of_ranks(place, begin, middle, first, count, out);
  sum_of_ranks(place, middle, end, first, count, right.data());
  for (std::size_t i = 0; i < count; ++i) out[i] += right[i];
}

// x += the sum of all ranks.
template <typename Place>
void add_ranks(const Place& place, int ranks, std::span<float> x) {
  for (std::size_t first = 0; first < x.size(); first += kSumBlock) {
    const std::size_t count = std::min(kSumBlock, x.size() - first);
    std::array<float, kSumBlock> sum;
    sum_of_ranks(place, 0, ranks, first, count, sum.data());
    for (std::size_t i = 0; i < count; ++i) x[first + i] += sum[i];
  }
}

}  // namespace quantspec
