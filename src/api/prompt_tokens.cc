#include "api/prompt_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "api/messages.h"
#include "base/error.h"
#include "base/shown.h"
#include "base/utf8.h"

namespace quantspec::api {

namespace {

[[noreturn]] void refuse_length(std::string message, int tokens, const Engine& engine) {
  throw Refused(context_exceeded(std::move(message), tokens, engine.ctx_size()));
}

// The engine stops reading a text that is much too long; then how long it is stays unknown.
std::vector<TokenId> encode(const Engine& engine, std::string_view text, bool add_special) {
  try {
    return engine.encode(text, add_special, engine.ctx_size());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidRequest) throw;
    refuse_length(one_line(error.what(json_name)), engine.ctx_size() + 1, engine);
  }
}

void require_room(const Engine& engine, std::size_t tokens) {
  if (tokens <= static_cast<std::size_t>(engine.ctx_size())) return;
  refuse_length(fmt::format("the prompt has {} tokens and the context has room for {}; a shorter "
                            "prompt or a server with a larger context works",
                            tokens, engine.ctx_size()),
                static_cast<int>(tokens), engine);
}

void require_known(const Engine& engine, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    if (id < engine.config().vocab_size) continue;
    fail(ErrorKind::kInvalidRequest, "{}: has the token {}; the model's are 0 to {}",
         Field{"prompt"}, id, engine.config().vocab_size - 1);
  }
}

}  // namespace

std::vector<TokenId> tokens_of(const Engine& engine, const Prompt& prompt, bool add_special) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (const auto* given = std::get_if<std::vector<TokenId>>(&prompt[i])) {
      require_known(engine, *given);
      ids.insert(ids.end(), given->begin(), given->end());
    } else {
      const auto more = encode(engine, std::get<std::string>(prompt[i]), add_special && i == 0);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    require_room(engine, ids.size());
  }
  return ids;
}

namespace {

void require_template(const Core& core) {
  if (core.options.apply_template) return;
  fail(ErrorKind::kInvalidRequest, "{}: this model has no chat template; use /v1/completions",
       Field{"messages"});
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.state != Utf8State::kValid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

}  // namespace

Rendered render(const Core& core, const Wanted& wanted) {
  require_template(core);
  Conversation conversation = conversation_of(wanted);
  Disguise disguise(core.engine.tokenizer());
  disguise.put_on(conversation.messages);
  const std::string begun = disguise.put_on(conversation.begun);
  const std::string text = core.options.apply_template(
      conversation.messages, wanted.tools, conversation.add_generation_prompt, wanted.variables);
  if (!is_utf8(text)) fail(ErrorKind::kInternal, "a chat template gave a text that is not UTF-8");
  return disguise.take_off(text + begun);
}

namespace {

// A template writes what goes around a text, as transformers has it: nothing is added. A text that
// is much too long is refused before it is read to its end.
std::vector<TokenId> ids_of(const Core& core, const Rendered& rendered) {
  std::vector<TokenId> ids;
  if (rendered.plain.empty()) {
    ids = encode(core.engine, rendered.text, false);
  } else {
    ids = core.engine.tokenizer().encode(rendered.text, false, rendered.plain);
  }
  require_room(core.engine, ids.size());
  return ids;
}

}  // namespace

std::vector<TokenId> conversation_tokens(const Core& core, const Wanted& wanted) {
  return ids_of(core, render(core, wanted));
}

std::vector<TokenId> next_turn_tokens(const Core& core, Wanted wanted, std::string answer) {
  const Conversation asked = conversation_of(wanted);
  const bool was_begun = asked.messages.size() < wanted.messages.size();
  if (was_begun || !asked.add_generation_prompt) return {};
  wanted.messages.push_back({{"role", "assistant"}, {"content", std::move(answer)}});
  wanted.messages.push_back({{"role", "user"}, {"content", "A"}});
  Rendered one = render(core, wanted);
  wanted.messages.back()["content"] = "B";
  const Rendered other = render(core, wanted);
  const auto end = std::ranges::mismatch(one.text, other.text).in1;
  one.text.erase(end, one.text.end());
  std::erase_if(one.plain, [&](const TextRange& range) { return range.end > one.text.size(); });
  return ids_of(core, one);
}

}  // namespace quantspec::api
