// What Markdown reports of this room are made of. Private to bench/.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quantspec::bench {

// Three digits; a dash for what is no number.
std::string number(double value);
std::string megabytes(std::size_t bytes);

using Cells = std::vector<std::string>;

// At most 100 columns wide. The first column is text and takes what the others leave.
std::string table(const Cells& titles, std::vector<Cells> rows);

// An item of a list, broken at spaces so that it fits 80 columns.
std::string item(std::string_view text);

}  // namespace quantspec::bench
