// What tests of requests of generation share: bodies, and what a refusal says.
#pragma once

#include <string>
#include <utility>

#include "api/test_support.h"

namespace quantspec::api {

inline constexpr const char* kPrompt = "It was a dark night, and the wind";
inline constexpr const char* kText = "/v1/completions";
inline constexpr const char* kChat = "/v1/chat/completions";

inline OrderedJson body(OrderedJson more = OrderedJson::object()) {
  OrderedJson body = {{"prompt", kPrompt}, {"max_tokens", 24}, {"temperature", 0}};
  if (!more.is_null()) body.update(more);
  return body;
}

inline OrderedJson chat(OrderedJson more = OrderedJson::object()) {
  OrderedJson chat = {{"max_tokens", 16}, {"temperature", 0}};
  chat["messages"] = OrderedJson::parse(R"([{"role": "user", "content": "Who goes there?"}])");
  if (!more.is_null()) chat.update(more);
  return chat;
}

class Completions : public Served {
 protected:
  std::string text_of(OrderedJson more) { return text(body(std::move(more))); }
  std::string refused(const char* path, const OrderedJson& body, int status, const char* param) {
    const auto reply = ask(post(path, body));
    EXPECT_EQ(reply->status(), status) << reply->body();
    const OrderedJson error = reply->json()["error"];
    if (param != nullptr) {
      EXPECT_EQ(error["param"], param) << reply->body();
    }
    return error["message"].get<std::string>();
  }
};

}  // namespace quantspec::api
