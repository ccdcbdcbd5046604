// Memory that is refused, for tests: this binary replaces `operator new` and what backends and
// libraries take memory by. Small allocations are given always: who has no memory for a list of ten
// numbers cannot go on. From any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace quantspec::testing {

inline constexpr std::size_t kSmall = 4096;           // bytes
inline std::atomic<std::size_t> refuse_from{kSmall};  // smaller ones are given
inline std::atomic<unsigned> refuse_one_in{0};  // of the allocations that are not small; 0: none
inline std::atomic<int> refuse_next{0};         // so many of them, after
inline std::atomic<int> refuse_after{0};        // so many that are given
inline std::atomic<unsigned> refused{0};        // by refuse_one_in

}  // namespace quantspec::testing
