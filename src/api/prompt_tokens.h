// From what a body has to what the engine takes. Thread-safe. Private to api/.
#pragma once

#include <string>
#include <vector>

#include "api/core.h"
#include "api/wanted.h"

namespace quantspec::api {

// A prompt as ids. Throws Refused where it is longer than the context, kInvalidRequest for ids that
// there are not.
std::vector<TokenId> tokens_of(const Engine& engine, const Prompt& prompt, bool add_special);

// The text that a conversation becomes, and where special tokens stand in it that are a message's:
// plain text, whatever they look like.
struct Rendered {
  std::string text;
  std::vector<TextRange> plain;
};
// Messages in which special tokens have other names, which templates pass on as they do any text.
class Disguise {
 public:
  explicit Disguise(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void put_on(OrderedJson& value);  // all texts in it
  std::string put_on(std::string_view text);
  Rendered take_off(std::string_view text) const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> names_;  // by number
};

// Throws kInvalidRequest where the model has no template, and what the template does.
Rendered render(const Core& core, const Wanted& wanted);
// Its ids. What the template writes is read with its special tokens.
std::vector<TokenId> conversation_tokens(const Core& core, const Wanted& wanted);

}  // namespace quantspec::api
