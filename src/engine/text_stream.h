// What becomes of a request's tokens on their way out: text, and where it ends. It runs inside the
// loop, so that a request ends in the round that produced its end, and what the round went beyond
// it is told to nobody.
//
// Text is held back while it is half a character, or could be the beginning of a stop string. A
// token is told at once all the same, with its log-probability; the text comes with a later one.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/stop_matcher.h"
#include "engine/token_event.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

class TextStream {
 public:
  struct Rules {
    std::vector<TokenId> eos = {};       // end the text as kEos; they have no text themselves
    std::vector<TokenId> stop_ids = {};  // the same as kStop
    std::vector<std::string> stop = {};  // text that ends it as kStop, and is no part of it
    int min_tokens = 0;                  // from which token on that text is looked for
  };
  // `tokenizer` outlives the stream, which begins inside a text.
  TextStream(const Tokenizer& tokenizer, Rules rules);

  // Takes the next token and shows it, once. Returns why the text ends with it, if it does; then it
  // takes no more. event: its id, and whatever is not about text.
  std::optional<StopReason> push(TokenEvent event, const TokenCallback& show);
  // The text ends otherwise: shows what was held back, with the last token.
  void finish(const TokenCallback& show);

  const std::string& text() const { return text_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  // The same, of a stream that has ended.
  std::string take_text() { return std::move(text_); }
  std::vector<TokenId> take_tokens() { return std::move(tokens_); }

 private:
  bool show(TokenEvent event, std::string_view text, const TokenCallback& show);

  Rules rules_;
  StreamDecoder decoder_;
  StopMatcher stops_;
  std::string text_;  // that was shown
  std::vector<TokenId> tokens_;
};

}  // namespace quantspec
