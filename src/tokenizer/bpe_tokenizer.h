// A text to ids with a BPE model: added tokens, normalizer, pre-tokenizer, merges; and back with a
// decoder. Made of the parts that a file describes; behind tokenizer.h and vocabulary.h.
//
// Immutable once it is handed out: threads may share one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/steps.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

struct BpeParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const BpeModel> model;
  TokenDecoder decoder;
};

// What surrounds a text with `add_special`, and which tokens a program may ask for.
struct SpecialTokens {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);

  // While it is being made: one more added token, of at most kMaxTokenId, whose text no other id
  // has. Returns the bytes of all of them, of which known files have few; after the last one
  // finish() is called. REQUIRES: those bytes are kMaxAddedBytes at most when it is.
  std::size_t add(AddedToken token);
  void finish(SpecialTokens special);

  // The id of a token of the vocabulary or of an added one.
  std::optional<TokenId> find(const std::string& token) const;

  std::vector<TokenId> encode(std::string_view text, bool add_special) const override {
    return encode(text, add_special, {});
  }
  std::vector<TokenId> encode(std::string_view text, bool add_special,
                              std::span<const TextRange> plain) const override;
  std::vector<TextRange> special_tokens_in(std::string_view text) const override;

  using Tokenizer::token_bytes;
  std::string token_bytes(TokenId id, bool& at_start) const override;
  int vocab_size() const override { return static_cast<int>(tokens_.size()); }
  std::optional<TokenId> bos() const override { return special_.bos; }
  std::optional<TokenId> eos() const override { return special_.eos; }
  bool is_special(TokenId id) const override {
    return id >= 0 && id < vocab_size() && is_special_[id];
  }
  std::string name(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? tokens_[id] : std::string();
  }
  // NOTE: for a broken run of byte tokens Hugging Face's ByteFallback writes U+FFFD for every byte
  // of the run, valid characters included; that could not be streamed. SentencePiece, whose models
  // these are, writes one per broken byte, and so does this.
  bool marks_every_bad_byte() const override { return !parts_.decoder.is_byte_level(); }

 private:
  // What comes and goes with one call of encode().
  struct Encoding {
    explicit Encoding(std::size_t bytes) : limit(bytes) {}

    WorkLimit limit;
    std::unordered_map<std::string, std::vector<TokenId>, TableHash, std::equal_to<>> cache;
    std::vector<TokenId> ids;
  };

  void encode_plain(std::string_view text, bool at_start, bool has_tokens,
                    Encoding& encoding) const;
  void encode_word(const std::string& word, Encoding& encoding) const;

  BpeParts parts_;
  std::vector<std::string> tokens_;  // by id, as the decoder reads them; with the added ones
  std::vector<bool> is_special_;     // by id
  std::unordered_map<std::string, TokenId, TableHash, std::equal_to<>> added_;
  std::vector<AddedTokenMatcher::Pattern> raw_;         // until finish()
  std::vector<AddedTokenMatcher::Pattern> normalized_;  // as well
  bool has_special_normalized_ = false;
  std::size_t added_bytes_ = 0;
  AddedTokenMatcher raw_matcher_;         // before the normalizer
  AddedTokenMatcher normalized_matcher_;  // after it
  SpecialTokens special_;
};

}  // namespace quantspec
