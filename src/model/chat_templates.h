// Where a model keeps its chat templates. Private to model/; ModelFiles tells what is found.
#pragma once

#include <filesystem>
#include <vector>

#include "chat/chat.h"

namespace quantspec {

class GgufMetadata;

// What chat_template.jinja has, else chat_template.json, else tokenizer_config.json; empty texts do
// not count. None, too, and a warning (base/log.h) that names the file, where the first that has
// any has something else: a model that cannot talk continues texts.
std::vector<NamedChatTemplate> folder_chat_templates(const std::filesystem::path& folder);

// Likewise tokenizer.chat_template, and those that tokenizer.chat_templates names.
std::vector<NamedChatTemplate> gguf_chat_templates(const GgufMetadata& data);

}  // namespace quantspec
