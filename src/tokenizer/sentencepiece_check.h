// What the SentencePiece library does not check of a model before it trusts it. It follows offsets
// without looking where they point, keeps what it finds in tables of fixed size, walks down strings
// by recursion, and copies what it has again and again: a broken or hostile model would make it
// read outside its memory, exhaust its stack, or never end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/token.h"

namespace quantspec {

struct ModelFacts {
  std::string_view problem;  // why the library must not get the model; empty: it may
  ErrorKind kind = {};       // of the problem
  int num_pieces = 0;
  TokenId unknown = 0;           // the piece of what is unknown; the library takes no model without
  bool has_byte_pieces = false;  // what is unknown is written in bytes
  bool has_byte_names = false;   // a piece is named as they are: "<0x0A>"
  std::size_t most_growth = 0;   // bytes of normalized text that one byte can become
};

// Of a serialized ModelProto.
ModelFacts inspect_model(std::string_view model);

// The model without the texts that the library would encode while it loads, to see whether it gives
// the tokens that are written beside them. REQUIRES: inspect_model(model) has no problem.
std::string without_self_tests(std::string_view model);

}  // namespace quantspec
