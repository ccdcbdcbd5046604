// What `tokenizer_config.json` and `added_tokens.json`, beside a tokenizer, add to it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/json_field.h"

namespace quantspec {

// Everything is optional; the tokenizer's own file decides what is not said here.
struct TokenizerConfig {
  std::optional<bool> adds_bos;
  std::optional<bool> adds_eos;
  std::optional<std::string> bos;  // the token's text
  std::optional<std::string> eos;
  bool legacy = false;  // the text after an added token gets a leading space too
  std::vector<AddedToken> added_tokens;
};

// Reads both files of the folder; a missing one says nothing.
TokenizerConfig load_tokenizer_config(const std::filesystem::path& model_dir);

// The fields of one added token; `id` is given or read by the caller.
AddedToken read_added_token(const JsonField& field, std::int64_t id);

}  // namespace quantspec
