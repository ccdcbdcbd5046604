// How much memory this process may use.
#pragma once

#include <cstddef>

namespace quantspec {

// Bytes that can still be allocated without swapping: the machine's available memory, or what a
// control group leaves, whichever is less.
std::size_t available_memory_bytes();

// The most resident memory that this process has had.
std::size_t peak_rss_bytes();

}  // namespace quantspec
