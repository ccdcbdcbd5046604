// How much memory this process may use.
#pragma once

#include <cstddef>
#include <filesystem>

namespace quantspec {

// Bytes that can still be allocated without swapping: the machine's available memory, or what the
// control groups that this process is in leave (of version 1 or 2, each with those above it),
// whichever is least. `root`: where /proc and /sys are, for tests.
std::size_t available_memory_bytes(const std::filesystem::path& root = "/");

// The most resident memory that this process has had.
std::size_t peak_rss_bytes();

}  // namespace quantspec
