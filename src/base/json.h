// JSON, through nlohmann-json. Reading is linear in the size of the text and bounded: nesting,
// values, bytes of a file. A key that stands twice in one object is an error, and so is a zero
// byte. Every error is one line that names the file and the byte (kCorruptFile, unless said
// otherwise).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_fwd.h"

namespace quantspec {

// What a text may be, and the kind of error that it is otherwise.
struct JsonLimits {
  std::size_t depth = 200;                    // of objects and arrays in each other
  std::size_t values = std::size_t{1} << 23;  // of 16 to 100 bytes each
  ErrorKind error = ErrorKind::kCorruptFile;
};
// Of what a client sends.
inline constexpr JsonLimits kClientJson{64, 100'000, ErrorKind::kInvalidRequest};

// Parses `text`; `where` (a path) goes into messages. Memory and time are linear in the text, and
// no nesting is recursion.
Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});

// Parses an array one element at a time: take(index, element) gets each and may throw. So a file of
// a million records costs the memory of one.
void parse_json_array(std::string_view text, std::string_view where,
                      const std::function<void(std::size_t, Json)>& take);

// Reads and parses a file. Throws kInvalidRequest when it cannot be read.
Json parse_json_file(const std::filesystem::path& path);

// Valid JSON whatever bytes its strings have: what is not UTF-8, as a path may be, becomes U+FFFD.
// `indent` < 0: on one line. AnyJson: Json or nlohmann::ordered_json.
template <typename AnyJson>
std::string dump_json(const AnyJson& json, int indent = -1) {
  return json.dump(indent, ' ', false, AnyJson::error_handler_t::replace);
}

}  // namespace quantspec
