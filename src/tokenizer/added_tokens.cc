#include "tokenizer/added_tokens.h"

#include <algorithm>

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

void AddedTokenMatcher::add(std::string_view pattern, AddedToken token) {
  if (pattern.empty()) return;
  std::uint32_t node = 0;
  for (const char c : pattern) {
    const std::uint64_t edge = std::uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [next, is_new] =
        edges_.try_emplace(edge, static_cast<std::uint32_t>(token_of_node_.size()));
    if (is_new) token_of_node_.push_back(kNoToken);
    node = next->second;
  }
  token_of_node_[node] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
  starts_token_[static_cast<unsigned char>(pattern[0])] = true;
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_match(std::string_view text) const {
  Match best;
  if (!starts_token_[static_cast<unsigned char>(text[0])]) return best;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto next = edges_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (next == edges_.end()) break;
    node = next->second;
    if (token_of_node_[node] != kNoToken) best = {i + 1, token_of_node_[node]};
  }
  return best;
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Piece> pieces;
  std::size_t plain = 0;  // where the text not yet cut off begins
  for (std::size_t at = 0; at < text.size();) {
    const Match match = longest_match(text.substr(at));
    if (match.token == kNoToken) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    std::size_t begin = at;
    std::size_t end = at + match.length;
    at = end;
    if (token.single_word &&
        (ends_inside_word(text.substr(0, begin)) || begins_inside_word(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = without_trailing_space(text.substr(0, begin)).size();
    if (token.rstrip) end += leading_space(text.substr(end));
    if (plain < begin) pieces.push_back({text.substr(plain, begin - plain), std::nullopt});
    pieces.push_back({{}, token.id});
    plain = std::max(plain, end);
  }
  if (plain < text.size()) pieces.push_back({text.substr(plain), std::nullopt});
  return pieces;
}

}  // namespace quantspec
