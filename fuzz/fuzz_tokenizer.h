// What the two targets of tokenizers share.
#pragma once

#include "base/utf8.h"
#include "fuzz_input.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

// Loads the tokenizer of the folder in memory, and encodes and decodes with it. What is refused
// must be refused with an Error.
inline void try_tokenizer(std::string_view text) {
  try {
    const auto tokenizer = load_tokenizer(memory_folder().path());
    std::vector<TokenId> ids = tokenizer->encode(text, /*add_special=*/true);
    for (const TokenId id : ids) require(id >= 0 && id < tokenizer->vocab_size());
    for (TokenId id = -1; id < 40; ++id) ids.push_back(id);
    ids.push_back(tokenizer->vocab_size() - 1);
    const std::string decoded = tokenizer->decode(ids);
    require(repair_utf8(decoded) == decoded);
  } catch (const Error& error) {
    refused(error);
  }
}

}  // namespace quantspec
