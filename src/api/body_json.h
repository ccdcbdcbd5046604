// The JSON of a request's body: strict, bounded, and with the order of keys kept, which templates
// show. Private to api/. Pure; thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "api/api.h"

namespace quantspec::api {

inline constexpr std::size_t kMostDepth = 64;
// Values that are no elements of arrays of numbers, which token ids are: those are of 16 bytes
// each, and as many as bytes of a body.
inline constexpr std::size_t kMostValues = 100'000;

// Throws kInvalidRequest, with the byte: for what is not UTF-8 or no JSON, a key that stands twice,
// and what is too deep or too much. Takes time and memory linear in the text.
OrderedJson parse_body(std::string_view text);

}  // namespace quantspec::api
