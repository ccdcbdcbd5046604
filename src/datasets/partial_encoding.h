// The tokens of a text, encoded from its start only as far as someone asks: a book is long and a
// prompt is short.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace quantspec {

// They are the first tokens of the encoding of the whole text. REQUIRES: text and tokenizer outlive
// the object.
class PartialEncoding {
 public:
  PartialEncoding(std::string_view text, const Tokenizer& tokenizer)
      : text_(text), tokenizer_(&tokenizer) {}

  // `count` tokens or more; all of the text's when it has fewer.
  const std::vector<TokenId>& at_least(std::size_t count);

 private:
  std::size_t cut_after(std::size_t bytes) const;

  std::string_view text_;
  const Tokenizer* tokenizer_;
  std::size_t encoded_bytes_ = 0;
  std::vector<TokenId> tokens_;
};

}  // namespace quantspec
