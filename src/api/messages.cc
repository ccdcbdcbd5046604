#include "api/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "api/request_fields.h"
#include "base/error.h"
#include "base/field.h"
#include "base/shown.h"

namespace quantspec::api {

namespace {

[[noreturn]] void refuse_at(std::string_view place, std::string_view what) {
  fail(ErrorKind::kInvalidRequest, "{}: {}", Field{place}, what);
}

TokenId read_id(const OrderedJson& value, std::string_view place) {
  constexpr std::int64_t kMost = std::numeric_limits<TokenId>::max();
  if (value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0)) {
    const auto id = value.get<std::uint64_t>();
    if (id <= static_cast<std::uint64_t>(kMost)) return static_cast<TokenId>(id);
  }
  refuse_at(place, "a token id is a whole number of the vocabulary");
}

// A list of ids and texts.
Prompt read_parts(const OrderedJson& list, std::string_view place) {
  Prompt prompt;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const OrderedJson& value = list[i];
    if (value.is_string()) {
      prompt.emplace_back(value.get<std::string>());
      continue;
    }
    if (!value.is_number()) refuse_at(place, "must hold texts or token ids");
    if (prompt.empty() || std::holds_alternative<std::string>(prompt.back())) {
      prompt.emplace_back(std::vector<TokenId>());
    }
    std::get<std::vector<TokenId>>(prompt.back()).push_back(read_id(value, place));
  }
  if (prompt.empty()) refuse_at(place, "is empty; give at least one token");
  return prompt;
}

}  // namespace

std::vector<Prompt> read_prompts(const OrderedJson& value) {
  constexpr std::string_view kPlace = "prompt";
  if (value.is_string()) return {{value.get<std::string>()}};
  if (!value.is_array())
    refuse_at(kPlace, "must be a text, a list of token ids, or a list of these");
  if (value.empty()) refuse_at(kPlace, "is empty; give at least one token");
  const auto is_number = [](const OrderedJson& one) { return one.is_number(); };
  if (std::ranges::any_of(value, is_number)) return {read_parts(value, kPlace)};
  if (value.size() > kMostPrompts) {
    refuse_at(kPlace, fmt::format("{} prompts; at most {} work", value.size(), kMostPrompts));
  }
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("prompt[{}]", i);
    if (value[i].is_string()) {
      prompts.push_back({value[i].get<std::string>()});
    } else if (value[i].is_array()) {
      prompts.push_back(read_parts(value[i], place));
    } else {
      refuse_at(place, "must be a text or a list of token ids");
    }
  }
  return prompts;
}

namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

std::string text_of_parts(const OrderedJson& parts, const std::string& place,
                          std::string_view between = "\n") {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson& part = parts[i];
    const std::string at = fmt::format("{}[{}]", place, i);
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      refuse_at(at, "must be a part with a type");
    }
    const auto type = part["type"].get<std::string>();
    if (type != "text") {
      refuse_at(at, fmt::format("a part of type {}; this model reads text alone", shown(type)));
    }
    if (!part.contains("text") || !part["text"].is_string()) refuse_at(at, "must have a text");
    if (i > 0) text += between;
    text += part["text"].get<std::string>();
  }
  return text;
}

OrderedJson read_content(const OrderedJson& message, bool may_lack, const std::string& place) {
  if (!message.contains("content") || message["content"].is_null()) {
    if (may_lack) return nullptr;
    refuse_at(place, "is missing; give a text");
  }
  const OrderedJson& content = message["content"];
  if (content.is_string()) return content;
  if (content.is_array()) return text_of_parts(content, place);
  refuse_at(place, "must be a text or a list of parts of type text");
}

OrderedJson read_message(const OrderedJson& message, const std::string& place) {
  if (!message.is_object()) refuse_at(place, "must be an object with role and content");
  const std::string role_place = place + ".role";
  if (!message.contains("role") || !message["role"].is_string()) {
    refuse_at(role_place, "must be one of system, developer, user, assistant, tool");
  }
  auto role = message["role"].get<std::string>();
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    refuse_at(role_place, fmt::format("{}; it must be one of system, developer, user, assistant, "
                                      "tool",
                                      shown(role)));
  }
  if (role == "developer") role = "system";
  const bool calls = role == "assistant" && message.contains("tool_calls") &&
                     message["tool_calls"].is_array() && !message["tool_calls"].empty();
  OrderedJson read = {{"role", role}};
  read["content"] = read_content(message, calls, place + ".content");
  if (calls) read["tool_calls"] = message["tool_calls"];
  for (const char* key : {"name", "tool_call_id", "reasoning_content"}) {
    if (!message.contains(key) || message[key].is_null()) continue;
    if (!message[key].is_string()) refuse_at(fmt::format("{}.{}", place, key), "must be a text");
    read[key] = message[key];
  }
  return read;
}

}  // namespace

std::string read_prediction(const OrderedJson& value) {
  if (!value.contains("type") || value["type"] != "content") {
    refuse_at("prediction.type", "must be content");
  }
  constexpr const char* kPlace = "prediction.content";
  if (value.contains("content") && value["content"].is_array()) {
    return text_of_parts(value["content"], kPlace, "");
  }
  return read_content(value, false, kPlace).get<std::string>();
}

OrderedJson read_messages(const OrderedJson& value) {
  if (!value.is_array() || value.empty()) {
    refuse_at("messages", "must be a list of at least one message");
  }
  OrderedJson messages = OrderedJson::array();
  for (std::size_t i = 0; i < value.size(); ++i) {
    messages.push_back(read_message(value[i], fmt::format("messages[{}]", i)));
  }
  return messages;
}

OrderedJson read_variables(const OrderedJson& value) {
  constexpr std::size_t kMost = 32;
  constexpr std::array<std::string_view, 7> kOwn = {
      "messages",  "tools",     "documents",    "add_generation_prompt",
      "bos_token", "eos_token", "chat_template"};
  if (!value.is_object() || value.size() > kMost) {
    refuse_at("chat_template_kwargs",
              fmt::format("must be an object of at most {} members", kMost));
  }
  for (const auto& [name, one] : value.items()) {
    const std::string place = "chat_template_kwargs." + name;
    if (std::ranges::find(kOwn, name) != kOwn.end()) {
      refuse_at(place, "is the server's to say");
    }
    if (one.is_structured()) refuse_at(place, "must be a text, a number, true, false or null");
  }
  return value;
}

Conversation conversation_of(const Wanted& wanted) {
  Conversation conversation{wanted.messages, wanted.add_generation_prompt.value_or(true), {}};
  const OrderedJson& last = wanted.messages.back();
  const bool ends_begun = last["role"] == "assistant" && last["content"].is_string();
  if (wanted.continue_final_message && !ends_begun) {
    refuse_at("continue_final_message",
              "the last message must be one of the assistant with a text");
  }
  if (!ends_begun ||
      (wanted.add_generation_prompt.value_or(false) && !wanted.continue_final_message)) {
    return conversation;
  }
  conversation.begun = last["content"].get<std::string>();
  conversation.messages.erase(conversation.messages.size() - 1);
  conversation.add_generation_prompt = true;
  if (conversation.messages.empty()) {
    refuse_at("messages", "there is nothing before what the assistant has begun");
  }
  return conversation;
}

}  // namespace quantspec::api
