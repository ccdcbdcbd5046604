// The id of a token: an index into the vocabulary of one tokenizer.
#pragma once

#include <cstdint>

namespace quantspec {

using TokenId = std::int32_t;

}  // namespace quantspec
