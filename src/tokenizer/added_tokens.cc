#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/characters.h"

namespace quantspec {

namespace {

bool ends_inside_word(std::string_view before) {
  return !before.empty() && is_word_character(last_utf8(before).code);
}

bool begins_inside_word(std::string_view after) {
  return !after.empty() && is_word_character(next_utf8(after).code);
}

// Bytes of the white space at the beginning of `text`.
std::size_t leading_space(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const Utf8Step step = next_utf8(text.substr(size));
    if (!is_white_space(step.code)) break;
    size += step.length;
  }
  return size;
}

// `text` without the white space at its end.
std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step last = last_utf8(text);
    if (!is_white_space(last.code)) break;
    text.remove_suffix(last.length);
  }
  return text;
}

}  // namespace

// NOTE: to look for the longest pattern at every position, or to go on after a match, takes as long
// as the text and the patterns multiplied, if they are made for it: "a" and "aaaa...ab" in a text
// of a's. Read from its end, a text is one walk through the automaton of Aho and Corasick (1975) of
// the patterns, themselves written backwards: in each state the longest pattern that ends there is
// the longest one that begins at that place of the text.
AddedTokenMatcher::AddedTokenMatcher(std::vector<Pattern> patterns) {
  std::erase_if(patterns, [](const Pattern& pattern) { return pattern.text.empty(); });
  for (Pattern& pattern : patterns) std::ranges::reverse(pattern.text);
  std::ranges::stable_sort(patterns, {}, &Pattern::text);
  std::size_t bytes = 0;
  for (const auto& [text, token] : patterns) {
    bytes += text.size();
    known_.push_back({token.id, static_cast<std::uint32_t>(text.size()), token.lstrip, token.rstrip,
                      token.single_word});
  }
  check(bytes <= kMaxAddedBytes, "added tokens have their number of bytes checked");
  build_trie(patterns);
  link_suffixes();
}

// `patterns` are sorted, so that those below a node are neighbours.
void AddedTokenMatcher::build_trie(const std::vector<Pattern>& patterns) {
  struct Range {
    std::size_t begin, end;  // of the patterns below a node
  };
  std::vector<Range> ranges = {{0, patterns.size()}};
  nodes_.resize(1);
  std::size_t level_end = 1;
  for (std::size_t node = 0, depth = 0; node < nodes_.size(); ++node) {
    if (node == level_end) {
      level_end = nodes_.size();
      ++depth;
    }
    nodes_[node].first_child = static_cast<std::uint32_t>(nodes_.size());
    auto [at, end] = ranges[node];
    for (; at < end && patterns[at].text.size() == depth; ++at) {
      nodes_[node].known = static_cast<std::int32_t>(at);
    }
    while (at < end) {
      const char byte = patterns[at].text[depth];
      const std::size_t begin = at;
      while (at < end && patterns[at].text[depth] == byte) ++at;
      ranges.push_back({begin, at});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      if (node == 0) root_children_[static_cast<unsigned char>(byte)] = nodes_.size() - 1;
    }
  }
  nodes_.push_back({.first_child = static_cast<std::uint32_t>(nodes_.size())});
}

void AddedTokenMatcher::link_suffixes() {
  for (std::uint32_t node = 0; node + 1 < nodes_.size(); ++node) {
    for (std::uint32_t at = nodes_[node].first_child; at < nodes_[node + 1].first_child; ++at) {
      Node& child = nodes_[at];
      if (node != 0) child.suffix = next(nodes_[node].suffix, child.byte);
      if (child.known == kNone) child.known = nodes_[child.suffix].known;
    }
  }
}

std::optional<std::uint32_t> AddedTokenMatcher::child(std::uint32_t node,
                                                      unsigned char byte) const {
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = nodes_.begin() + nodes_[node + 1].first_child;
  const auto found = std::ranges::lower_bound(begin, end, byte, {}, &Node::byte);
  if (found == end || found->byte != byte) return std::nullopt;
  return static_cast<std::uint32_t>(found - nodes_.begin());
}

// The state after `node` and a byte.
std::uint32_t AddedTokenMatcher::next(std::uint32_t node, unsigned char byte) const {
  for (; node != 0; node = nodes_[node].suffix) {
    if (const auto found = child(node, byte)) return *found;
  }
  return root_children_[byte];
}

// Where tokens begin, from the end of the text on, each with the longest.
std::vector<AddedTokenMatcher::Match> AddedTokenMatcher::matches(std::string_view text) const {
  std::vector<Match> matches;
  if (known_.empty()) return matches;
  std::uint32_t node = 0;
  for (std::size_t at = text.size(); at-- > 0;) {
    node = next(node, static_cast<unsigned char>(text[at]));
    if (nodes_[node].known != kNone) matches.push_back({at, nodes_[node].known});
  }
  return matches;
}

std::vector<AddedTokenMatcher::Found> AddedTokenMatcher::find(std::string_view text) const {
  std::vector<Found> tokens;
  std::size_t at = 0;
  const std::vector<Match> found = matches(text);
  for (auto match = found.rbegin(); match != found.rend(); ++match) {
    if (match->begin < at) continue;
    const Known& token = known_[match->known];
    at = match->begin + token.length;
    tokens.push_back({{match->begin, at}, token.id});
  }
  return tokens;
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::split(
    std::string_view text, std::span<const TextRange> plain_ranges) const {
  std::vector<Piece> pieces;
  std::size_t plain = 0;      // where the text not yet cut off begins
  std::size_t at = 0;         // the end of the last match
  std::size_t space_end = 0;  // of the white space looked through last
  const std::vector<Match> found = matches(text);
  for (auto match = found.rbegin(); match != found.rend(); ++match) {
    if (match->begin < at) continue;
    const Known& token = known_[match->known];
    std::size_t begin = match->begin;
    std::size_t end = begin + token.length;
    while (!plain_ranges.empty() && plain_ranges.front().end <= begin) {
      plain_ranges = plain_ranges.subspan(1);
    }
    if (!plain_ranges.empty() && plain_ranges.front().begin < end) continue;
    at = end;
    if (token.single_word &&
        (ends_inside_word(text.substr(0, begin)) || begins_inside_word(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) {
      const std::size_t before = begin - std::min(begin, plain);
      begin = plain + without_trailing_space(text.substr(plain, before)).size();
    }
    if (token.rstrip) {
      if (space_end <= end) space_end = end + leading_space(text.substr(end));
      end = space_end;
    }
    if (begin >= end) continue;  // all of it is white space that the token before has swallowed
    if (plain < begin) pieces.push_back({text.substr(plain, begin - plain), std::nullopt});
    pieces.push_back({{}, token.id});
    plain = end;
  }
  if (plain < text.size()) pieces.push_back({text.substr(plain), std::nullopt});
  return pieces;
}

}  // namespace quantspec
