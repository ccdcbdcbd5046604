// For tests: expects that what takes time takes no more than a linear one, on any machine, however
// busy it is.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <functional>
#include <limits>

namespace quantspec {

// Runs `run` on what `prepare` made, of `size` and of four times as much: the time of the processor
// in this process, the least of several, is then four times as long, and 16 times where it grows
// with the square of the size. REQUIRES: a square would be most of the time of run(4 * size).
inline void expect_linear_time(std::size_t size, const std::function<void(std::size_t)>& prepare,
                               const std::function<void(std::size_t)>& run) {
  constexpr int kRuns = 3;
  const auto least = [&](std::size_t of) {
    std::clock_t least = std::numeric_limits<std::clock_t>::max();
    prepare(of);
    for (int i = 0; i < kRuns; ++i) {
      const std::clock_t start = std::clock();
      run(of);
      least = std::min(least, std::clock() - start);
    }
    return static_cast<double>(least);
  };
  const double small = least(size), large = least(4 * size);
  EXPECT_LT(large / small, 9) << small / CLOCKS_PER_SEC << " s for " << size;
}

}  // namespace quantspec
