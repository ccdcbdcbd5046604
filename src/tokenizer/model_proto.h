// A SentencePiece model as its library reads it, written from the arrays of a vocabulary.
#pragma once

#include <string>

#include "tokenizer/vocabulary.h"

namespace quantspec {

// The text of the piece `id`. No piece may be empty, so that an empty token has a name; and spaces
// of user-defined tokens, which converters write as they stand in a text, are the library's marks
// again.
std::string piece_text(const Vocabulary& vocabulary, TokenId id);

// A serialized ModelProto: BPE without normalization rules. Empty tokens are control pieces, which
// no text has. REQUIRES: check_vocabulary(vocabulary) and scores, with one unknown token.
std::string model_proto(const Vocabulary& vocabulary, TokenId unknown);

}  // namespace quantspec
