// Byte-pair encoding, the "model" of a tokenizer.json or a "gpt2" vocabulary: a word starts as its
// characters, and the pair with the lowest merge rank becomes one token until no pair has a merge.
// Source: Sennrich et al., arXiv:1508.07909.
//
// Immutable: threads may share one. A word of n characters takes O(n log n).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/token.h"
#include "tokenizer/json_field.h"

namespace quantspec {

struct Vocabulary;

class BpeModel {
 public:
  // Throws kUnsupportedModel for another model type, kCorruptFile for one that contradicts itself.
  explicit BpeModel(const JsonField& field);

  // Of a gpt2 vocabulary: its tokens but those that are empty or unused, and its merges. Throws
  // kCorruptFile for a merge of what are no tokens. REQUIRES: check_vocabulary(vocabulary).
  BpeModel(const Vocabulary& vocabulary, bool ignores_merges);

  // The vocabulary's indices point into the object.
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  // Appends the ids of `word`. A character that is no token becomes its bytes' tokens, else the
  // unknown token, else nothing: as the file says. REQUIRES: valid UTF-8.
  void encode(std::string_view word, std::vector<TokenId>& ids) const;

  std::optional<TokenId> find(std::string_view token) const;

  // By id; an id without a token has an empty one.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Merge {
    std::int32_t rank;
    TokenId result;
  };

  void read_vocabulary(const JsonField& vocabulary);
  void read_vocabulary(const Vocabulary& vocabulary);
  void read_merges(const JsonField& merges);
  void read_merges(const Vocabulary& vocabulary);
  void read_merge(std::string_view left, std::string_view right, std::int32_t rank,
                  const JsonField& merges);
  void read_bytes(const JsonField& field);
  std::vector<TokenId> characters(std::string_view word) const;
  bool append_bytes(std::string_view character, std::vector<TokenId>& ids) const;
  void merge(std::vector<TokenId>& ids) const;
  const Merge* find_merge(TokenId left, TokenId right) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, TokenId, TableHash> ids_;  // views into tokens_
  std::unordered_map<std::uint64_t, Merge, TableHash> merges_;    // left << 32 | right
  std::array<std::optional<TokenId>, 256> byte_tokens_;
  std::optional<TokenId> unknown_;
  bool fuses_unknown_ = false;   // a run of unknown characters is one token
  bool ignores_merges_ = false;  // a word that is a token stays whole
};

}  // namespace quantspec
