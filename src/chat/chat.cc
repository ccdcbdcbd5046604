#include "chat/chat.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "chat/interpreter.h"
#include "chat/syntax.h"

namespace quantspec {

namespace {

using jinja::Kind;
using jinja::Memory;
using jinja::Trouble;
using jinja::Value;

// JSON as values. Texts stay where they are.
class Converter {
 public:
  explicit Converter(Memory& memory) : memory_(memory) {}

  Value convert(const OrderedJson& json) {
    const jinja::Descent descent(depth_, jinja::kMaxDepth, "the request's JSON is nested");
    memory_.spend();
    switch (json.type()) {
      case OrderedJson::value_t::object: {
        jinja::Dict& dict = memory_.dict();
        for (const auto& [key, value] : json.items()) dict.set(text(key), convert(value), memory_);
        return Value(dict);
      }
      case OrderedJson::value_t::array: {
        std::vector<Value> items;
        for (const OrderedJson& item : json) items.push_back(convert(item));
        return memory_.list(Kind::kList, std::move(items));
      }
      case OrderedJson::value_t::string:
        return text(json.get_ref<const std::string&>());
      case OrderedJson::value_t::boolean:
        return Value(json.get<bool>());
      case OrderedJson::value_t::number_integer:
        return Value(json.get<std::int64_t>());
      case OrderedJson::value_t::number_unsigned:
        return integer(json.get<std::uint64_t>());
      case OrderedJson::value_t::number_float:
        return Value(json.get<double>());
      default:
        return Value::none();
    }
  }

 private:
  static Value text(const std::string& text) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max()) jinja::refuse("a text of 4 GiB");
    return Value(std::string_view(text));
  }
  static Value integer(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      jinja::refuse(fmt::format("the integer {} has more than 64 bits", value));
    return Value(static_cast<std::int64_t>(value));
  }

  Memory& memory_;
  std::size_t depth_ = 0;
};

// The variables that the template names, by symbol.
class Variables {
 public:
  Variables(const jinja::Template& shape, Memory& memory)
      : names_(shape.names), values_(names_.size()), memory_(memory) {}

  void set(std::string_view name, const Value& value) {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) values_[i] = value;
    }
  }
  void set(std::string_view name, const OrderedJson* json) {
    Converter converter(memory_);
    set(name, json != nullptr ? converter.convert(*json) : Value::none());
  }
  void set(std::string_view name, std::optional<std::string_view> text) {
    if (text) set(name, Value(*text));
  }
  std::vector<std::optional<Value>> take() { return std::move(values_); }

 private:
  const std::vector<std::string_view>& names_;
  std::vector<std::optional<Value>> values_;
  Memory& memory_;
};

std::vector<std::optional<Value>> variables_of(const ChatInput& input, const jinja::Template& shape,
                                               Memory& memory) {
  Variables variables(shape, memory);
  variables.set("messages", input.messages);
  variables.set("tools", input.tools);
  variables.set("documents", nullptr);
  variables.set("add_generation_prompt", Value(input.add_generation_prompt));
  variables.set("bos_token", input.bos_token);
  variables.set("eos_token", input.eos_token);
  if (input.variables != nullptr) {
    for (const auto& [name, value] : input.variables->items()) variables.set(name, &value);
  }
  return variables.take();
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

void require_utf8(std::string_view source) {
  for (std::string_view rest = source; !rest.empty();) {
    const Utf8Step step = next_utf8(rest);
    if (step.state != Utf8State::kValid) {
      fail(ErrorKind::kCorruptFile, "chat template: no UTF-8 at byte {}",
           source.size() - rest.size());
    }
    rest.remove_prefix(step.length);
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source) {
  require_utf8(source);
  template_ = jinja::parse_template(source);
}

std::string ChatTemplate::render(const ChatInput& input) const {
  Memory memory;
  const std::tm now = input.now ? *input.now : local_time();
  jinja::Interpreter interpreter(*template_, memory, now);
  try {
    return interpreter.run(variables_of(input, *template_, memory));
  } catch (const Trouble& trouble) {
    if (interpreter.line() == 0) fail(trouble.kind, "chat template: {}", trouble.what);
    fail(trouble.kind, "chat template, line {}: {}", interpreter.line(), trouble.what);
  }
}

std::vector<NamedChatTemplate> named_chat_templates(const OrderedJson& chat_template) {
  std::vector<NamedChatTemplate> all;
  const auto add = [&](const OrderedJson& name, const OrderedJson& source) {
    if (!name.is_string() || !source.is_string())
      fail(ErrorKind::kCorruptFile, "chat_template: a name or a template is no text");
    all.push_back({name.get<std::string>(), source.get<std::string>()});
  };
  if (chat_template.is_string()) {
    add("default", chat_template);
  } else if (chat_template.is_object()) {
    for (const auto& [name, source] : chat_template.items()) add(name, source);
  } else if (chat_template.is_array()) {
    for (const OrderedJson& one : chat_template) {
      if (!one.is_object() || !one.contains("name") || !one.contains("template"))
        fail(ErrorKind::kCorruptFile, "chat_template: an element has no name or no template");
      add(one["name"], one["template"]);
    }
  } else {
    fail(ErrorKind::kCorruptFile, "chat_template is neither a text nor a list of templates");
  }
  return all;
}

const NamedChatTemplate& choose_chat_template(const std::vector<NamedChatTemplate>& templates,
                                              std::string_view name, bool has_tools) {
  const auto find = [&](std::string_view wanted) -> const NamedChatTemplate* {
    for (const NamedChatTemplate& one : templates) {
      if (one.name == wanted) return &one;
    }
    return nullptr;
  };
  const NamedChatTemplate* found = nullptr;
  if (!name.empty()) {
    found = find(name);
  } else {
    if (has_tools) found = find("tool_use");
    if (found == nullptr) found = find("default");
  }
  if (found != nullptr) return *found;
  std::string names;
  for (const NamedChatTemplate& one : templates) {
    if (!names.empty()) names += ", ";
    names += shown(one.name);
  }
  fail(ErrorKind::kInvalidRequest, "the model has no chat template {}: it has {}",
       shown(name.empty() ? "default" : name), names.empty() ? "none" : names);
}

}  // namespace quantspec
