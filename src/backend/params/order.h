// How an op stands to what was called before it. Plain data.
#pragma once

#include <cstdint>

namespace quantspec {

// Results are those of the order of the calls, either way. On a device an op that overlaps may
// begin while the op before it still runs, and read meanwhile what is older than that: weights,
// pages and lists of them, K and V in full precision of positions before the pass's. embed(), with
// which a pass begins, is always after all else.
enum class OpOrder : std::uint8_t {
  kAfter,     // it begins when all before it has ended
  kOverlaps,  // REQUIRES: the op before it wrote none of these
};

}  // namespace quantspec
