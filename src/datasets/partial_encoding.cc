#include "datasets/partial_encoding.h"

#include <algorithm>

namespace quantspec {

namespace {

constexpr std::size_t kBytesPerToken = 5;  // enough for English; where it is not, twice as many

// The last tokens before a cut are not used. NOTE: the cut is between words, where the tokenizers
// that are read here never merge, but what they look for in a text (added tokens) may go across.
constexpr std::size_t kMargin = 64;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

const std::vector<TokenId>& PartialEncoding::at_least(std::size_t count) {
  while (tokens_.size() < count && encoded_bytes_ < text_.size()) {
    encoded_bytes_ = cut_after(std::max(kBytesPerToken * (count + kMargin), 2 * encoded_bytes_));
    tokens_ = tokenizer_->encode(text_.substr(0, encoded_bytes_), false);
    if (encoded_bytes_ < text_.size()) {
      tokens_.resize(tokens_.size() - std::min(tokens_.size(), kMargin));
    }
  }
  return tokens_;
}

// Where a single space after that many bytes parts two words, or the end.
std::size_t PartialEncoding::cut_after(std::size_t bytes) const {
  for (std::size_t at = text_.find(' ', bytes); at < text_.size(); at = text_.find(' ', at + 1)) {
    const bool parts =
        at > 0 && !is_space(text_[at - 1]) && at + 1 < text_.size() && !is_space(text_[at + 1]);
    if (parts) return at;
  }
  return text_.size();
}

}  // namespace quantspec
