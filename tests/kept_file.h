// For tests: what loops keep of texts, as files would have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request_loop.h"

namespace quantspec::testing {

// Of a text. REQUIRES: the loop runs.
struct KeptFile {
  RequestLoop::KeptPrefix kept = {};
  std::vector<std::vector<std::byte>> parts = {};  // chunks, and then the tail
};
inline KeptFile read_file_of(RequestLoop& loop, std::span<const TokenId> text) {
  KeptFile file;
  loop.read_prefix(
      "", text, [&](const RequestLoop::KeptPrefix& kept) { file.kept = kept; },
      [&](std::span<const std::byte> part) { file.parts.emplace_back(part.begin(), part.end()); });
  return file;
}
inline void write_file_of(RequestLoop& loop, std::span<const TokenId> text, const KeptFile& file) {
  loop.write_prefix(
      "", text, file.kept,
      [&](std::uint64_t chunk) { return std::span<const std::byte>(file.parts.at(chunk)); },
      [&] { return std::span<const std::byte>(file.parts.back()); });
}

}  // namespace quantspec::testing
