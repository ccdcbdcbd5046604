// The check that the SentencePiece library does not do: it follows the offsets in the normalization
// table of a model ("precompiled_charsmap") without looking where they point, so a broken file
// would make it read outside its memory.
#pragma once

#include <string_view>

namespace quantspec {

// Whether `model`, a serialized ModelProto, is well formed down to its normalization tables, and
// every offset in those stays inside.
bool has_sound_normalization(std::string_view model);

}  // namespace quantspec
