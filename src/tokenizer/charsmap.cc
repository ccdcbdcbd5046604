#include "tokenizer/charsmap.h"

#include <algorithm>
#include <vector>

namespace quantspec {

namespace {

constexpr int kMaxKeyBytes = 200;  // of what is replaced; the library's own rules: 18
constexpr int kMaxMatches = 32;    // of rules that begin at one place: of the library's table
constexpr int kMaxResultBytes = kMaxCharsmapGrowth * kMaxKeyBytes;

// A charsmap is the size of a double-array trie (u32), the trie, and strings that end with NUL. A
// unit of the trie (u32) at index i holds, from bit 0: its label (8 bits), whether its first child
// is a value (1), whether the offset is scaled by 256 (1), the offset (21), whether it is a value
// (1; then the other 31 bits are an offset into the strings). Children are at i ^ offset ^ label.
// Source: the format of Darts-clone.
class Charsmap {
 public:
  explicit Charsmap(std::string_view bytes) {
    if (bytes.size() < 4) return;
    const std::size_t trie_bytes = read_u32(bytes, 0);
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) return;
    trie_ = bytes.substr(4, trie_bytes);
    strings_ = bytes.substr(4 + trie_bytes);
  }

  bool is_sound() const;
  bool is_bounded() {
    below_.assign(num_units(), {});
    return measure(0, 0) && below_[0].matches <= kMaxMatches;
  }

 private:
  // The most on a way down from a unit: bytes, and values; and how many bytes must lie above it, so
  // that no value is too long for its key.
  struct Below {
    bool is_known = false;
    std::uint8_t bytes = 0;
    std::uint8_t matches = 0;
    std::uint8_t needed = 0;
  };

  std::size_t num_units() const { return trie_.size() / 4; }
  std::uint32_t unit(std::size_t i) const { return read_u32(trie_, 4 * i); }
  // Where the children of unit i are, but for their labels.
  std::size_t children(std::size_t i) const {
    return i ^ std::size_t{unit(i) >> 10} << ((unit(i) >> 9 & 1) * 8);
  }
  bool has_value(std::size_t i) const { return (unit(i) >> 8 & 1) != 0; }
  std::size_t value(std::size_t i) const { return unit(children(i)) & 0x7FFFFFFF; }
  // Of the string that a value is: up to one more than the longest that may be, and for its spaces.
  int value_bytes(std::size_t i) const {
    std::string_view string = strings_.substr(value(i), kMaxResultBytes + 1);
    string = string.substr(0, string.find('\0'));
    const auto spaces = std::ranges::count(string, ' ');
    return static_cast<int>(string.size() + spaces * (kSpaceMarkBytes - 1));
  }
  bool measure(std::size_t at, int depth);

  std::string_view trie_;
  std::string_view strings_;
  std::vector<Below> below_;
};

bool Charsmap::is_sound() const {
  if (strings_.empty() || strings_.back() != '\0') return false;
  for (std::size_t i = 0; i < num_units(); ++i) {
    const bool is_value = unit(i) >> 31 != 0;
    if (is_value && i != 0) continue;
    if ((children(i) | 0xFF) >= num_units()) return false;
    if (has_value(i) && value(i) >= strings_.size()) return false;
  }
  return true;
}

// Follows every way down from a unit once. Returns false for one that is too long: then it may go
// in circles. REQUIRES: is_sound().
bool Charsmap::measure(std::size_t at, int depth) {
  if (depth > kMaxKeyBytes) return false;
  Below& below = below_[at];
  if (below.is_known) return depth + below.bytes <= kMaxKeyBytes && depth >= below.needed;
  for (std::uint32_t label = 0; label < 256; ++label) {
    const std::size_t child = children(at) ^ label;
    if ((unit(child) & 0x800000FF) != label) continue;
    if (!measure(child, depth + 1)) return false;
    below.bytes = std::max<std::uint8_t>(below.bytes, below_[child].bytes + 1);
    below.matches = std::max(below.matches, below_[child].matches);
    if (below_[child].needed > 0) {
      below.needed = std::max<std::uint8_t>(below.needed, below_[child].needed - 1);
    }
  }
  if (has_value(at) && depth > 0) {
    ++below.matches;
    const int needed = (value_bytes(at) + kMaxCharsmapGrowth - 1) / kMaxCharsmapGrowth;
    if (needed > depth) return false;
    below.needed = std::max<std::uint8_t>(below.needed, needed);
  }
  below.is_known = true;
  return below.matches <= kMaxMatches;
}

}  // namespace

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

CharsmapFacts inspect_charsmap(std::string_view bytes) {
  if (bytes.empty()) return {.is_sound = true, .is_bounded = true};  // no normalization
  Charsmap charsmap(bytes);
  CharsmapFacts facts;
  facts.is_sound = charsmap.is_sound();
  facts.is_bounded = facts.is_sound && charsmap.is_bounded();
  return facts;
}

}  // namespace quantspec
