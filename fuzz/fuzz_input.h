// What the fuzz targets share: inputs of several parts, and the files that the parts stand for.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/test_folder.h"

namespace quantspec {

// Lines of this cut an input into its parts (fuzz/make_seeds.py writes them, too).
inline constexpr std::string_view kCut = "\n=====\n";

// The parts of an input; the last of `most` parts has all that follows.
inline std::vector<std::string_view> parts_of(const std::uint8_t* data, std::size_t size,
                                              std::size_t most) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < most) {
    const std::size_t cut = rest.find(kCut);
    if (cut == rest.npos) break;
    parts.push_back(rest.substr(0, cut));
    rest.remove_prefix(cut + kCut.size());
  }
  parts.push_back(rest);
  return parts;
}

inline std::string part_or_empty(const std::vector<std::string_view>& parts, std::size_t i) {
  return i < parts.size() ? std::string(parts[i]) : std::string();
}

// A file of a header and data, written as the number of bytes of data, a new line and the header.
// So a fuzzer need not find lengths and data that fit a header that it has changed.
struct HeaderAndData {
  std::string_view header;
  std::string data;  // zeros, then `pattern` again and again
};

inline HeaderAndData read_header_and_data(std::string_view part, std::string_view pattern = {}) {
  constexpr std::size_t kMostData = 1 << 21;
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
  if (error == std::errc()) part.remove_prefix(end - part.data());
  if (part.starts_with('\n')) part.remove_prefix(1);
  std::string data(std::min(size, kMostData), '\0');
  for (std::size_t i = 0; i < data.size() && !pattern.empty(); ++i)
    data[i] = pattern[i % pattern.size()];
  return {part, std::move(data)};
}

// A folder in memory, of this process.
inline const TestFolder& memory_folder() {
  static const TestFolder folder = [] {
    setenv("TMPDIR", "/dev/shm", /*overwrite=*/0);
    return TestFolder();
  }();
  return folder;
}

// Writes a file of that folder; nothing to write: none is there.
inline void write_or_remove(const std::string& name, const std::string& bytes) {
  if (bytes.empty()) {
    std::filesystem::remove(memory_folder() / name);
  } else {
    memory_folder().write(name, bytes);
  }
}

// What must hold whatever the input is.
inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

// How an input may be refused: with any Error but one that is a bug of ours.
inline void refused(const Error& error) { require(error.kind() != ErrorKind::kInternal); }

// What one step throws may be about that step alone.
template <typename Step>
void ask(const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    refused(error);
  }
}

}  // namespace quantspec
