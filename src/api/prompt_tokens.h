// From what a body has to what the engine takes. Thread-safe. Private to api/.
#pragma once

#include <string>
#include <vector>

#include "api/core.h"
#include "api/wanted.h"
#include "engine/chat_prompts.h"

namespace quantspec::api {

// A prompt as ids. Throws Refused where it is longer than the context, kInvalidRequest for ids that
// there are not.
std::vector<TokenId> tokens_of(const Engine& engine, const Prompt& prompt, bool add_special);

using Rendered = Disguise::Rendered;

// Throws kInvalidRequest where the model has no template, and what the template does.
Rendered render(const Core& core, const Wanted& wanted);
// Its ids. What the template writes is read with its special tokens.
std::vector<TokenId> conversation_tokens(const Core& core, const Wanted& wanted);
// With what every further prompt begins once the conversation has this answer, whatever the user
// says then. None where the answer went on with a message that was begun.
std::vector<TokenId> next_turn_tokens(const Core& core, Wanted wanted, std::string answer);

}  // namespace quantspec::api
