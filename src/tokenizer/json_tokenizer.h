// The tokenizer of a `tokenizer.json` whose model is BPE. Behind tokenizer.h; use that.
#pragma once

#include <memory>
#include <string_view>

#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace quantspec {

// `text` is the content of the file, `file` its name for messages. Throws as load_tokenizer does.
std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, std::string_view file,
                                               const TokenizerConfig& config);

}  // namespace quantspec
