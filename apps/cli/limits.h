// Bounds of the numbers on the command line, in one table: what is computed of values within them
// fits the types that hold it.
#pragma once

#include <cstdint>
#include <limits>

namespace quantspec::cli {

inline constexpr int kMostContext = 1 << 28;  // tokens
inline constexpr int kMostTokens = 1 << 28;   // decoded or scored after them
inline constexpr int kMostPrompts = 1'000'000;
inline constexpr int kMostRuns = 1'000'000;
inline constexpr int kMostBatch = 1'000'000;    // sequences at once
inline constexpr int kMostGenerated = 100'000;  // tokens that roofline adds up one by one
inline constexpr int kMostStreams = 1024;       // requests that are in the cache at once
inline constexpr int kMostThreads = 1024;
inline constexpr int kMostDevice = 1023;

static_assert(std::int64_t{kMostContext} + kMostTokens + 1 <= std::numeric_limits<int>::max());

}  // namespace quantspec::cli
