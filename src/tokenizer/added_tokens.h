// Added tokens: strings such as "<|im_end|>" that are one token wherever they stand in a text,
// found before anything else happens to it. Matches are the leftmost, and of those the longest.
//
// AddedTokenMatcher is immutable once built, so threads may share one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/token.h"

namespace quantspec {

// Ids above this are refused: tables are indexed by id, and no vocabulary comes near it.
inline constexpr TokenId kMaxTokenId = (1 << 20) - 1;

// The fields of Hugging Face's AddedToken.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;      // a control token: not part of decoded text
  bool normalized = false;   // found after the normalizer, not before
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and after it
  bool single_word = false;  // not inside a word
};

class AddedTokenMatcher {
 public:
  struct Piece {
    std::string_view text;      // a part of the input; empty for a token
    std::optional<TokenId> id;  // none for plain text
  };

  // Finds `pattern` (token.content, perhaps normalized) as `token`. An empty pattern is ignored.
  void add(std::string_view pattern, AddedToken token);

  // Cuts `text` at the tokens. Plain pieces are not empty. REQUIRES: valid UTF-8.
  std::vector<Piece> split(std::string_view text) const;

 private:
  static constexpr std::int32_t kNoToken = -1;

  struct Match {
    std::size_t length = 0;
    std::int32_t token = kNoToken;  // index into tokens_
  };
  Match longest_match(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // trie: node * 256 + byte -> node
  std::vector<std::int32_t> token_of_node_ = {kNoToken};    // node 0 is the root
  std::array<bool, 256> starts_token_{};                    // by first byte
};

}  // namespace quantspec
