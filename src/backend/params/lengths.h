// How long the contexts of a batch are, as far as kernels go by it. A round is repeated with
// others, so its key says it (RoundKey).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace quantspec {

struct BatchLengths {
  std::int64_t all = 0;  // tokens
  std::int64_t most = 0;
  int count = 0;

  void add(std::int64_t tokens) {
    all += tokens;
    most = std::max(most, tokens);
    ++count;
  }
  std::int64_t mean() const { return all / std::max(1, count); }
  // Whether some are so much longer than others that what reads them is shared out in smaller
  // parts.
  bool unequal() const { return mean() >= kShort && 2 * most > 3 * mean(); }
  // 0 for one sequence. In powers of two, so that a round seldom becomes another one because its
  // contexts have grown.
  int key() const {
    if (count < 2) return 0;
    return 2 * std::bit_width(static_cast<std::uint64_t>(mean() / kShort)) + unequal();
  }

 private:
  static constexpr std::int64_t kShort = 1024;
};

}  // namespace quantspec
