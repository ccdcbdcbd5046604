#include "tokenizer/bpe_tokenizer.h"

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

std::vector<TokenId> BpeTokenizer::encode(std::string_view text, bool add_special) const {
  const std::string valid = repair_utf8(text);
  Encoding encoding(valid.size());
  std::vector<TokenId>& ids = encoding.ids;
  if (add_special) ids = special_.prefix;
  for (const auto& piece : raw_matcher_.split(valid)) {
    if (piece.id) {
      ids.push_back(*piece.id);
    } else {
      encode_plain(piece.text, piece.text.data() == valid.data(), encoding);
    }
  }
  if (add_special) ids.insert(ids.end(), special_.suffix.begin(), special_.suffix.end());
  return std::move(ids);
}

void BpeTokenizer::encode_plain(std::string_view text, bool at_start, Encoding& encoding) const {
  const std::string normal = parts_.normalizer.apply(std::string(text), encoding.limit);
  for (const auto& piece : normalized_matcher_.split(normal)) {
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
