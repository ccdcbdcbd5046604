// Chat templates: what makes a prompt of a conversation, as a model's file has it.
//
// A template is Jinja, of which this room has the part that models use, with the output of Hugging
// Face's apply_chat_template byte for byte (docs/chat-templates.md). Files of models are not
// trusted: a template computes with plain values alone, and a rendering takes a bounded number of
// steps.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quantspec {

using OrderedJson = nlohmann::ordered_json;  // keys stay in the order of the request

namespace jinja {
struct Template;
}

// What is rendered. REQUIRES: what it points to outlives the rendering.
struct ChatInput {
  const OrderedJson* messages =
      nullptr;                         // an array; each has a role, content and what else there is
  const OrderedJson* tools = nullptr;  // an array; nullptr: none
  bool add_generation_prompt = true;   // ends where the model's answer begins
  std::optional<std::string_view> bos_token, eos_token;
  const OrderedJson* variables = nullptr;  // an object: more of them, which win
  std::optional<std::tm> now;              // what strftime_now shows; nullopt: the local time
};

// A template that has been read. Thread-safe: any number of renderings at once. A copy is cheap.
class ChatTemplate {
 public:
  // Throws kCorruptFile for what is no template, kUnsupportedModel for what is not supported.
  explicit ChatTemplate(std::string_view source);

  // Throws kInvalidRequest for messages that the template cannot show, as those that it raises an
  // exception for, or that take more than the limits of a rendering; kUnsupportedModel for what is
  // not supported and is met only now.
  std::string render(const ChatInput& input) const;

 private:
  std::shared_ptr<const jinja::Template> template_;
};

// A model may have several templates.
struct NamedChatTemplate {
  std::string name;
  std::string source;
};

// Those of a tokenizer_config.json's chat_template: a text, which is "default", or an array of
// {"name", "template"}, or an object of them by name. Throws kCorruptFile.
std::vector<NamedChatTemplate> named_chat_templates(const OrderedJson& chat_template);

// That with this name. An empty name: "tool_use" where there are tools and it is there, else
// "default". Throws kInvalidRequest, naming those that are there.
const NamedChatTemplate& choose_chat_template(const std::vector<NamedChatTemplate>& templates,
                                              std::string_view name, bool has_tools);

}  // namespace quantspec
