// JSON files of a model folder, through nlohmann-json. Every error names the file and the key.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_fwd.h"

namespace quantspec {

// Parses `text`; `where` (a path) goes into the message. Throws kCorruptFile.
Json parse_json(std::string_view text, std::string_view where);

// Reads and parses a file. Throws kInvalidRequest when it cannot be read, kCorruptFile when it is
// not JSON.
Json parse_json_file(const std::filesystem::path& path);

}  // namespace quantspec
