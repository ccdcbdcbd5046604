#include "model/chat_templates.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "gguf/gguf.h"

namespace quantspec {

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // the longest known have 20,000

// NOTE: templates by name come in the order of their names.
std::vector<NamedChatTemplate> in_json(const std::filesystem::path& file) {
  const Json json = parse_json_file(file);
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (!json.is_object() || found == json.end() || found->is_null()) return {};
  try {
    return named_chat_templates(OrderedJson(*found));
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", file.string(), error.message());
  }
}

bool is_empty(const NamedChatTemplate& one) { return one.source.empty(); }

// Who does not talk needs no templates.
template <typename F>
std::vector<NamedChatTemplate> or_none(const F& read) {
  try {
    return read();
  } catch (const Error& error) {
    log_warning(Message::format("the model's chat templates cannot be used: {}", error.message()));
    return {};
  }
}

std::vector<NamedChatTemplate> in_folder(const std::filesystem::path& folder) {
  for (const char* name : {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"}) {
    const auto file = folder / name;
    if (!file_exists(file)) continue;
    std::vector<NamedChatTemplate> templates;
    if (file.extension() == ".jinja") {
      templates.push_back({"default", read_file(file, kMostBytes)});
    } else {
      templates = in_json(file);
    }
    std::erase_if(templates, is_empty);
    if (!templates.empty()) return templates;
  }
  return {};
}

std::vector<NamedChatTemplate> in_gguf(const GgufMetadata& data) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  std::vector<NamedChatTemplate> templates;
  const auto add = [&](std::string_view name, const std::string& key) {
    const auto source = data.text(key);
    if (source) templates.push_back({std::string(name), std::string(*source)});
  };
  add("default", std::string(kKey));
  for (const std::string_view name :
       data.texts(fmt::format("{}s", kKey)).value_or(std::vector<std::string_view>())) {
    if (name != "default") add(name, fmt::format("{}.{}", kKey, name));
  }
  std::erase_if(templates, is_empty);
  return templates;
}

}  // namespace

std::vector<NamedChatTemplate> folder_chat_templates(const std::filesystem::path& folder) {
  return or_none([&] { return in_folder(folder); });
}

std::vector<NamedChatTemplate> gguf_chat_templates(const GgufMetadata& data) {
  return or_none([&] { return in_gguf(data); });
}

}  // namespace quantspec
