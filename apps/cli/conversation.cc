#include "apps/cli/conversation.h"

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

void Conversation::save(const std::filesystem::path& file) const {
  const std::string text = dump_json(OrderedJson{{"messages", messages()}}, 2) + "\n";
  NewFile written(file);
  written.append(std::as_bytes(std::span(text)));
  written.finish();
}

void Conversation::load(const std::filesystem::path& file) {
  const Json json = parse_json_file(file);
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    fail(ErrorKind::kCorruptFile, "{}: must have a list of messages", file.string());
  }
  std::string system;
  OrderedJson turns = OrderedJson::array();
  for (const Json& message : json["messages"]) {
    if (!is_message(message)) {
      fail(ErrorKind::kCorruptFile, "{}: a message has no text for role and content",
           file.string());
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
