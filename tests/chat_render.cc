// Renders chat templates for tools/chat_templates.py: on each line of standard input an object with
// the template, or null for the one before, and the variables; on each of standard output one with
// the text, or the error.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "chat/chat.h"

using namespace quantspec;

namespace {

// Monday, the 5th of February 2024, 13:04:09.
std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 1;
  time.tm_mday = 5;
  time.tm_hour = 13;
  time.tm_min = 4;
  time.tm_sec = 9;
  time.tm_wday = 1;
  time.tm_yday = 35;
  return time;
}

OrderedJson answer(std::optional<ChatTemplate>& chat, const OrderedJson& question) {
  try {
    if (question.at("template").is_string()) {
      chat.reset();
      chat.emplace(question.at("template").get_ref<const std::string&>());
    }
    if (!chat) return {{"error", "no template"}};
    ChatInput input;
    input.now = fixed_time();
    input.variables = &question.at("variables");
    return {{"text", chat->render(input)}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  std::optional<ChatTemplate> chat;
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::string text = answer(chat, OrderedJson::parse(line)).dump();
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
  }
}
