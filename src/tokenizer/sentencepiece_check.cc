#include "tokenizer/sentencepiece_check.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace quantspec {

namespace {

// Field numbers of sentencepiece_model.proto.
constexpr std::uint64_t kNormalizerSpec = 3;
constexpr std::uint64_t kDenormalizerSpec = 5;
constexpr std::uint64_t kPrecompiledCharsmap = 2;  // of the two above

// Takes a base-128 number off the front of `bytes`.
std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) return std::nullopt;
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Calls visit(field number, content) for every length-delimited field of a message, and stops when
// it returns false. Returns whether the message is well formed and no visit returned false.
// Source: the Protocol Buffers encoding; groups, which SentencePiece has none of, are refused.
template <typename Visit>
bool visit_fields(std::string_view message, const Visit& visit) {
  while (!message.empty()) {
    const auto tag = take_varint(message);
    if (!tag) return false;
    const auto wire_type = *tag & 7;
    std::optional<std::uint64_t> size = 0;
    if (wire_type == 0) {
      if (!take_varint(message)) return false;
    } else if (wire_type == 1) {
      size = 8;
    } else if (wire_type == 2) {
      size = take_varint(message);
    } else if (wire_type == 5) {
      size = 4;
    } else {
      return false;
    }
    if (!size || *size > message.size()) return false;
    if (wire_type == 2 && !visit(*tag >> 3, message.substr(0, *size))) return false;
    message.remove_prefix(*size);
  }
  return true;
}

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

// A charsmap is the size of a double-array trie (u32), the trie, and strings that end with NUL. A
// unit of the trie (u32) at index i holds, from bit 0: its label (8 bits), whether its first child
// is a value (1), whether the offset is scaled by 256 (1), the offset (21), whether it is a value
// (1; then the other 31 bits are an offset into the strings). Children are at i ^ offset ^ label.
// Source: the format of Darts-clone.
bool is_sound_charsmap(std::string_view charsmap) {
  if (charsmap.empty()) return true;  // no normalization
  if (charsmap.size() < 4) return false;
  const std::size_t trie_bytes = read_u32(charsmap, 0);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > charsmap.size() - 4) return false;
  const std::string_view trie = charsmap.substr(4, trie_bytes);
  const std::string_view strings = charsmap.substr(4 + trie_bytes);
  if (strings.empty() || strings.back() != '\0') return false;
  const std::size_t num_units = trie_bytes / 4;
  for (std::size_t i = 0; i < num_units; ++i) {
    const std::uint32_t unit = read_u32(trie, 4 * i);
    const bool is_value = unit >> 31 != 0;
    if (is_value && i != 0) continue;
    const std::size_t offset = std::size_t{unit >> 10} << ((unit >> 9 & 1) * 8);
    const std::size_t child = i ^ offset;
    if ((child | 0xFF) >= num_units) return false;
    const bool has_value = (unit >> 8 & 1) != 0;
    if (has_value && (read_u32(trie, 4 * child) & 0x7FFFFFFF) >= strings.size()) return false;
  }
  return true;
}

}  // namespace

bool has_sound_normalization(std::string_view model) {
  return visit_fields(model, [](std::uint64_t field, std::string_view content) {
    if (field != kNormalizerSpec && field != kDenormalizerSpec) return true;
    return visit_fields(content, [](std::uint64_t inner, std::string_view charsmap) {
      return inner != kPrecompiledCharsmap || is_sound_charsmap(charsmap);
    });
  });
}

}  // namespace quantspec
