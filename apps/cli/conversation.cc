#include "apps/cli/conversation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/chat_prompts.h"
#include "engine/engine.h"

namespace quantspec::cli {

namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_message(const Json& message) {
  const auto is_text = [&](const char* key) {
    return message.contains(key) && message[key].is_string();
  };
  return message.is_object() && is_text("role") && is_text("content");
}

}  // namespace

OrderedJson Conversation::messages() const {
  OrderedJson all = OrderedJson::array();
  if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
  for (const OrderedJson& turn : turns_) all.push_back(turn);
  return all;
}

std::vector<TokenId> Conversation::tokens(const Engine& engine) const {
  const OrderedJson said = messages();
  const int room = engine.ctx_size();
  std::vector<TokenId> tokens;
  if (engine.chat_prompts().empty()) {
    std::string text;
    for (const OrderedJson& message : said)
      text += message["content"].get_ref<const std::string&>();
    tokens = engine.encode(text, true, room);
  } else {
    ChatInput input;
    input.messages = &said;
    tokens = engine.chat_prompts().tokens(input);
  }
  if (std::ssize(tokens) >= room) {
    fail(ErrorKind::kInvalidRequest,
         "the conversation has {} tokens, and the context has room for {}; a shorter one or a "
         "larger "
         "--ctx-size works",
         tokens.size(), room);
  }
  return tokens;
}

std::vector<TokenId> Conversation::next_tokens(const Engine& engine) const {
  Conversation one = *this, other = *this;
  one.add_user("A");
  other.add_user("B");
  std::vector<TokenId> tokens = one.tokens(engine);
  const std::vector<TokenId> others = other.tokens(engine);
  tokens.erase(std::ranges::mismatch(tokens, others).in1, tokens.end());
  return tokens;
}

std::string Conversation::text() const {
  return dump_json(OrderedJson{{"messages", messages()}}, 2) + "\n";
}

void Conversation::save(const std::filesystem::path& file) const {
  NewFile written(file);
  const std::string content = text();
  written.append(std::as_bytes(std::span(content)));
  written.finish();
}

void Conversation::load(const std::filesystem::path& file) {
  take(parse_json_file(file), file.string());
}

void Conversation::parse(const std::string& text, const std::string& name) {
  take(parse_json(text, name), name);
}

void Conversation::take(const Json& json, const std::string& name) {
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    fail(ErrorKind::kCorruptFile, "{}: must have a list of messages", name);
  }
  std::string system;
  OrderedJson turns = OrderedJson::array();
  for (const Json& message : json["messages"]) {
    if (!is_message(message)) {
      fail(ErrorKind::kCorruptFile, "{}: a message has no text for role and content", name);
    }
    if (turns.empty() && system.empty() && message["role"] == "system") {
      system = message["content"].get<std::string>();
    } else {
      turns.push_back({{"role", message["role"].get<std::string>()},
                       {"content", message["content"].get<std::string>()}});
    }
  }
  system_ = std::move(system);
  turns_ = std::move(turns);
}

}  // namespace quantspec::cli
