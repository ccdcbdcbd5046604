// The tokenizer of a `tokenizer.model`, through the SentencePiece library. Behind tokenizer.h; use
// that.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace quantspec {

// `model` is the content of the file (a serialized ModelProto), `file` its name for messages.
// Throws as load_tokenizer does.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        std::string_view file,
                                                        const TokenizerConfig& config);

}  // namespace quantspec
