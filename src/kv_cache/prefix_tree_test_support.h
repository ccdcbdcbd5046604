// For tests of the prefix tree: chunks of four tokens, and prompts by name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kv_cache/prefix_tree.h"

namespace quantspec {

inline constexpr int kPageSize = 2;
inline constexpr int kChunk = 4;
inline constexpr std::size_t kPages = kChunk / kPageSize;  // of a chunk
inline constexpr KvShape kShape{1, 1, 16, kPageSize};

// A prompt by name: every letter is a chunk, whose tokens differ in the last one only.
inline std::vector<TokenId> prompt(std::string_view chunks) {
  std::vector<TokenId> tokens;
  for (const char letter : chunks) {
    tokens.insert(tokens.end(), kChunk - 1, 7);
    tokens.push_back(letter);
  }
  return tokens;
}

inline std::vector<const void*> identities(std::span<const PageRef> pages) {
  std::vector<const void*> result;
  for (const PageRef& page : pages) result.push_back(page.planes().upper);
  return result;
}

}  // namespace quantspec
