// The normalization table of a SentencePiece model ("precompiled_charsmap"): a trie of what is
// replaced, and by what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quantspec {

// Of the mark that every space becomes.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space
inline constexpr int kSpaceMarkBytes = kSpaceMark.size();

// Bytes that may be put into a text for each byte that is replaced, spaces as their marks; the
// library's own rules: 13.
inline constexpr int kMaxCharsmapGrowth = 16;

struct CharsmapFacts {
  bool is_sound = false;    // every offset stays inside
  bool is_bounded = false;  // and the library's table of matches, its time and the text do, too
};

CharsmapFacts inspect_charsmap(std::string_view charsmap);

// The little-endian number at a byte. REQUIRES: at + 4 <= bytes.size().
std::uint32_t read_u32(std::string_view bytes, std::size_t at);

}  // namespace quantspec
