#include "tokenizer/tokenizer_config.h"

#include <charconv>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/shown.h"

namespace quantspec {

namespace {

// A token is written as its text, or as an object with its text in "content".
std::optional<std::string> read_token_text(const JsonField& config, std::string_view key) {
  const auto field = config.find(key);
  if (!field) return std::nullopt;
  return field->json().is_object() ? field->at("content").text() : field->text();
}

std::optional<bool> read_flag(const JsonField& config, std::string_view key) {
  const auto field = config.find(key);
  return field ? std::optional(field->boolean()) : std::nullopt;
}

void check_bytes(const JsonField& field, const std::vector<AddedToken>& tokens) {
  std::size_t bytes = 0;
  for (const AddedToken& token : tokens) bytes += token.content.size();
  if (bytes > kMaxAddedBytes) {
    field.unsupported(fmt::format("{} bytes of added tokens", bytes),
                      fmt::format("{}", kMaxAddedBytes));
  }
}

// {"32000": {"content": "<|im_end|>", ...}, ...}
void read_decoder_table(const JsonField& table, std::vector<AddedToken>& tokens) {
  if (!table.json().is_object()) table.corrupt("is not an object");
  for (const auto& [key, value] : table.json().items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      table.corrupt(fmt::format("has the key {}, which is no token id", shown(key)));
    }
    tokens.push_back(read_added_token(table.at(key), id));
  }
  check_bytes(table, tokens);
}

void read_config(const JsonField& config, TokenizerConfig& result) {
  result.adds_bos = read_flag(config, "add_bos_token");
  result.adds_eos = read_flag(config, "add_eos_token");
  result.bos = read_token_text(config, "bos_token");
  result.eos = read_token_text(config, "eos_token");
  result.legacy = config.boolean_or("legacy", false);
  if (const auto table = config.find("added_tokens_decoder")) {
    read_decoder_table(*table, result.added_tokens);
  }
}

// {"<|im_end|>": 32000, ...}: the older way to say it.
void read_added_tokens_file(const JsonField& file, std::vector<AddedToken>& tokens) {
  if (!file.json().is_object()) file.corrupt("is not an object");
  std::set<std::string, std::less<>> known;
  for (const AddedToken& token : tokens) known.insert(token.content);
  for (const auto& member : file.json().items()) {
    const std::string& content = member.key();
    if (known.contains(content)) continue;
    const std::int64_t id = file.at(content).integer();
    if (id < 0 || id > kMaxTokenId) file.at(content).corrupt("is no token id");
    tokens.push_back({.id = static_cast<TokenId>(id), .content = content});
  }
  check_bytes(file, tokens);
}

}  // namespace

AddedToken read_added_token(const JsonField& field, std::int64_t id) {
  if (id < 0 || id > kMaxTokenId) {
    field.corrupt(fmt::format("has an id that is not from 0 to {}", kMaxTokenId));
  }
  return {.id = static_cast<TokenId>(id),
          .content = field.at("content").text(),
          .special = field.boolean_or("special", false),
          .normalized = field.boolean_or("normalized", false),
          .lstrip = field.boolean_or("lstrip", false),
          .rstrip = field.boolean_or("rstrip", false),
          .single_word = field.boolean_or("single_word", false)};
}

TokenizerConfig load_tokenizer_config(const std::filesystem::path& model_dir) {
  TokenizerConfig config;
  const std::filesystem::path main = model_dir / "tokenizer_config.json";
  if (file_exists(main)) {
    const Json json = parse_json_file(main);
    read_config({json, main.native()}, config);
  }
  const std::filesystem::path added = model_dir / "added_tokens.json";
  if (file_exists(added)) {
    const Json json = parse_json_file(added);
    read_added_tokens_file({json, added.native()}, config.added_tokens);
  }
  return config;
}

}  // namespace quantspec
