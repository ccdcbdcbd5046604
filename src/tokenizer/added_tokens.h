// Added tokens: strings such as "<|im_end|>" that are one token wherever they stand in a text,
// found before anything else happens to it. Matches are the leftmost, and of those the longest.
//
// AddedTokenMatcher is immutable, so threads may share one. To build it takes the time and the
// memory of its patterns, to match those of the text, whatever the patterns are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

// Ids above this are refused: tables are indexed by id, and no vocabulary comes near it.
inline constexpr TokenId kMaxTokenId = (1 << 20) - 1;

// Bytes of all added tokens; known tokenizers have less than a hundredth of that.
inline constexpr std::size_t kMaxAddedBytes = 1 << 24;

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
  // A string that is found as a token: token.content, perhaps normalized.
  struct Pattern {
    std::string text;
    AddedToken token;
  };
  struct Piece {
    std::string_view text;      // a part of the input; empty for a token
    std::optional<TokenId> id;  // none for plain text
  };

  AddedTokenMatcher() = default;  // finds nothing
  // Empty patterns are ignored; of equal ones the last counts. REQUIRES: kMaxAddedBytes or
  // less in all.
  explicit AddedTokenMatcher(std::vector<Pattern> patterns);

  // Cuts `text` at the tokens, but for those that touch one of `plain`, which are in order. Plain
  // pieces are not empty. REQUIRES: valid UTF-8.
  std::vector<Piece> split(std::string_view text, std::span<const TextRange> plain = {}) const;
  // Where the tokens are, without the white space that they swallow.
  struct Found {
    TextRange range;
    TokenId id;
  };
  std::vector<Found> find(std::string_view text) const;

 private:
  static constexpr std::int32_t kNone = -1;

  // A node of the trie of the patterns, written backwards. Its children are those from first_child
  // on, up to the first child of the node after it, in the order of their bytes.
  struct Node {
    std::uint32_t first_child = 0;
    std::uint32_t suffix = 0;    // where its longest proper suffix that is in the trie ends
    std::int32_t known = kNone;  // the longest pattern that ends here or at the suffixes
    unsigned char byte = 0;      // on the way from its parent
  };
  struct Known {
    TokenId id;
    std::uint32_t length;  // bytes of the pattern
    bool lstrip, rstrip, single_word;
  };
  struct Match {
    std::size_t begin;
    std::int32_t known;  // index into known_
  };

  void build_trie(const std::vector<Pattern>& patterns);
  void link_suffixes();
  std::optional<std::uint32_t> child(std::uint32_t node, unsigned char byte) const;
  std::uint32_t next(std::uint32_t node, unsigned char byte) const;
  std::vector<Match> matches(std::string_view text) const;

  std::vector<Known> known_;
  std::vector<Node> nodes_;  // breadth first; the last is no node, but where the children end
  std::array<std::uint32_t, 256> root_children_{};  // 0: none
};

}  // namespace quantspec
