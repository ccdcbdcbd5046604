// Conversations as prompts, by a model's own chat templates. What is in a message stays text: a
// special token that somebody writes there, such as "<|im_end|>", ends nobody's turn.
//
// Immutable; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

// Texts in which special tokens have other names, which templates pass on as they do any text.
class Disguise {
 public:
  explicit Disguise(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // All texts of messages, and all names in them but those of a message's own members.
  void put_on(OrderedJson& messages);
  std::string put_on(std::string_view text);

  struct Rendered {
    std::string text;
    std::vector<TextRange> plain;  // where special tokens stand that are none
  };
  // Of what a template made of such texts.
  Rendered take_off(std::string_view text) const;

 private:
  void put_on_all(OrderedJson& value);  // names, too

  const Tokenizer& tokenizer_;
  std::vector<std::string> names_;  // by number
};

class ChatPrompts {
 public:
  // The tokenizer outlives it. A template that cannot be read is refused when it is used.
  ChatPrompts(std::vector<NamedChatTemplate> templates, const Tokenizer& tokenizer);

  bool empty() const { return templates_.empty(); }  // a base model: prompts are continued
  const std::vector<NamedChatTemplate>& templates() const { return templates_; }

  // The text of a conversation, which ends where an answer begins, or as the input says; BOS and
  // EOS are the model's unless it has them. Throws kInvalidRequest where there is no template, and
  // as ChatTemplate.
  std::string text(ChatInput input) const;
  // Its tokens. Nothing is added around them: a template writes BOS itself.
  std::vector<TokenId> tokens(ChatInput input) const;

 private:
  std::vector<NamedChatTemplate> templates_;
  std::vector<std::shared_ptr<const ChatTemplate>> read_;  // null: it cannot be
  const Tokenizer& tokenizer_;
  std::string bos_, eos_;
};

}  // namespace quantspec
