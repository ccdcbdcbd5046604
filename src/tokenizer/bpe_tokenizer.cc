#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace quantspec {

namespace {

// Words longer than this rarely come twice.
constexpr std::size_t kMaxCachedWord = 256;

}  // namespace

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : parts_(std::move(parts)),
      tokens_(parts_.model->tokens()),
      is_special_(tokens_.size(), false) {}

std::optional<TokenId> BpeTokenizer::find(const std::string& token) const {
  const auto added = added_.find(token);
  return added != added_.end() ? std::optional(added->second) : parts_.model->find(token);
}

std::size_t BpeTokenizer::add(AddedToken token) {
  if (token.id >= vocab_size()) {
    tokens_.resize(token.id + 1);
    is_special_.resize(token.id + 1, false);
  }
  WorkLimit limit(token.content.size());
  const std::string pattern =
      token.normalized ? parts_.normalizer.apply(token.content, limit) : token.content;
  tokens_[token.id] = pattern;
  is_special_[token.id] = token.special;
  added_[token.content] = token.id;
  has_special_normalized_ = has_special_normalized_ || (token.special && token.normalized);
  (token.normalized ? normalized_ : raw_).push_back({pattern, std::move(token)});
  return added_bytes_ += pattern.size();
}

void BpeTokenizer::finish(SpecialTokens special) {
  raw_matcher_ = AddedTokenMatcher(std::exchange(raw_, {}));
  normalized_matcher_ = AddedTokenMatcher(std::exchange(normalized_, {}));
  special_ = std::move(special);
}

std::string BpeTokenizer::token_bytes(TokenId id, bool& at_start) const {
  if (id < 0 || id >= vocab_size() || is_special_[id] || tokens_[id].empty()) return {};
  return parts_.decoder.decode(tokens_[id], at_start);
}

// NOTE: where a normalized text comes from is not known, so all of a piece is said to be a token
// that is found after the normalizer.
std::vector<TextRange> BpeTokenizer::special_tokens_in(std::string_view text) const {
  std::vector<TextRange> ranges;
  for (const auto& [range, id] : raw_matcher_.find(text)) {
    if (is_special(id)) ranges.push_back(range);
  }
  if (!has_special_normalized_) return ranges;
  WorkLimit limit(text.size());
  for (const auto& piece : raw_matcher_.split(text)) {
    if (piece.id) continue;
    const std::string normal = parts_.normalizer.apply(std::string(piece.text), limit);
    const auto found = normalized_matcher_.find(normal);
    if (std::ranges::none_of(found, [&](const auto& one) { return is_special(one.id); })) continue;
    const std::size_t begin = piece.text.data() - text.data();
    ranges.push_back({begin, begin + piece.text.size()});
  }
  // A piece may have some that a word around them keeps from being tokens.
  std::ranges::sort(ranges, [](const TextRange& a, const TextRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::size_t end = 0;
  std::erase_if(ranges, [&](const TextRange& range) {
    const bool is_inside = range.end <= end;
    end = std::max(end, range.end);
    return is_inside;
  });
  return ranges;
}

// NOTE: where a normalized text comes from is not known, so a piece with a part of `plain` has no
// tokens that are found after the normalizer.
std::vector<TokenId> BpeTokenizer::encode(std::string_view text, bool add_special,
                                          std::span<const TextRange> plain) const {
  const std::string valid = repair_utf8(text);
  Encoding encoding(valid.size());
  std::vector<TokenId>& ids = encoding.ids;
  if (add_special) ids = special_.prefix;
  for (const auto& piece : raw_matcher_.split(valid, plain)) {
    if (piece.id) {
      ids.push_back(*piece.id);
      continue;
    }
    const std::size_t begin = piece.text.data() - valid.data(), end = begin + piece.text.size();
    const auto next = std::ranges::upper_bound(plain, begin, {}, &TextRange::end);
    const bool has_tokens = next == plain.end() || next->begin >= end;
    encode_plain(piece.text, begin == 0, has_tokens, encoding);
  }
  if (add_special) ids.insert(ids.end(), special_.suffix.begin(), special_.suffix.end());
  return std::move(ids);
}

void BpeTokenizer::encode_plain(std::string_view text, bool at_start, bool has_tokens,
                                Encoding& encoding) const {
  static const AddedTokenMatcher kNone;
  const std::string normal = parts_.normalizer.apply(std::string(text), encoding.limit);
  for (const auto& piece : (has_tokens ? normalized_matcher_ : kNone).split(normal)) {
    if (piece.id) {
      encoding.ids.push_back(*piece.id);
      continue;
    }
    const bool first = at_start && piece.text.data() == normal.data();
    Word whole{std::string(piece.text), first};
    for (const Word& word : parts_.pre_tokenizer.cut(std::move(whole), encoding.limit)) {
      encode_word(word.text, encoding);
    }
  }
}

void BpeTokenizer::encode_word(const std::string& word, Encoding& encoding) const {
  auto& [limit, cache, ids] = encoding;
  if (word.size() > kMaxCachedWord) return parts_.model->encode(word, ids);
  const auto [entry, is_new] = cache.try_emplace(word);
  if (is_new) parts_.model->encode(word, entry->second);
  ids.insert(ids.end(), entry->second.begin(), entry->second.end());
}

}  // namespace quantspec
