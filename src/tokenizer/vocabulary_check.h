// What must hold of the arrays of a vocabulary before a tokenizer is made of them.
#pragma once

#include <string_view>

#include "tokenizer/json_field.h"
#include "tokenizer/vocabulary.h"

namespace quantspec {

// Throws kCorruptFile where the arrays contradict each other or themselves, where an id is no
// token, and for a token that is no text or stands twice; kUnsupportedModel for more or longer
// tokens than any known vocabulary has. Messages name the file and the key.
void check_vocabulary(const Vocabulary& vocabulary);

// Throws kCorruptFile for an id that is not below the number of tokens.
void check_token_ids(const Vocabulary& vocabulary);

// The key tokenizer.ggml.`key` of the file, for complaints about it: it has no value.
// REQUIRES: `vocabulary` outlives it.
JsonField key_of(const Vocabulary& vocabulary, std::string_view key);

}  // namespace quantspec
