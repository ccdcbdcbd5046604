// Prompts and messages of a body, checked and made alike. Pure; thread-safe. Private to api/. Each
// throws kInvalidRequest, naming the place ("messages[2].content").
#pragma once

#include <string>
#include <vector>

#include "api/wanted.h"

namespace quantspec::api {

// "text", ["text", ...], [1, 2], [[1, 2], ...], and lists in which these stand beside each other; a
// list of ids and texts is one prompt of several parts.
std::vector<Prompt> read_prompts(const OrderedJson& value);

// Roles that templates know (developer becomes system), contents as one text or null.
OrderedJson read_messages(const OrderedJson& value);

// OpenAI's: {"type": "content", "content": ..}, whose content is as a message's.
std::string read_prediction(const OrderedJson& value);

// Scalars, under names that the template's own variables do not have.
OrderedJson read_variables(const OrderedJson& value);

// What is asked of a template: messages without a last one that is to be continued, and its text.
struct Conversation {
  OrderedJson messages;
  bool add_generation_prompt = true;
  std::string begun;  // what the assistant has begun with
};
Conversation conversation_of(const Wanted& wanted);

}  // namespace quantspec::api
