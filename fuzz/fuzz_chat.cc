// A chat template, and the variables that it is rendered with as JSON: the parts of the input. What
// it renders is UTF-8, no larger than the limit, and the same the second time.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "chat/chat.h"
#include "fuzz_input.h"

using namespace quantspec;

namespace {

constexpr std::size_t kMostText = std::size_t{4} << 20;  // as docs/chat-templates.md has it

constexpr std::string_view kVariables = R"({
  "messages": [{"role": "system", "content": " Be short.\n"}, {"role": "user", "content": "Hi <b>\u00e9</b>"},
    {"role": "assistant", "content": null, "reasoning_content": "So.",
     "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "21"}]}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
  "text": "a b,c\n", "number": -7, "real": 0.1, "list": [3, 1, 2], "dict": {"b": 1, "a": {"c": "x"}}
})";

std::string outcome(const ChatTemplate& chat, const OrderedJson& variables) {
  ChatInput input;
  input.variables = &variables;
  input.now = std::tm{};
  try {
    return chat.render(input);
  } catch (const Error& error) {
    refused(error);
    return error.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parts = parts_of(data, size, 2);
  OrderedJson variables = OrderedJson::parse(parts.size() > 1 ? parts[1] : kVariables, nullptr,
                                             /*allow_exceptions=*/false);
  if (!variables.is_object()) variables = OrderedJson::object();
  try {
    const ChatTemplate chat(parts[0]);
    const std::string text = outcome(chat, variables);
    require(text.size() <= kMostText && repair_utf8(text) == text);
    require(outcome(chat, variables) == text);
    const auto named = named_chat_templates(variables.value("named", OrderedJson("x")));
    (void)choose_chat_template(named, "", true);
  } catch (const Error& error) {
    refused(error);
  }
  return 0;
}
