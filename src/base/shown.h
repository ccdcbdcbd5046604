// Text of files and users in messages: what a terminal would obey, or what would break a line, is
// written as an escape, and what is long is cut between characters. Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quantspec {

// A name or value from a file or from the command line, in quotes and short: "lm_head.weight",
// "a\nb", "\x80", "aaaa...".
std::string shown(std::string_view text);

// As it is, or where it is of more than `most` bytes its beginning and "...", together as many at
// most. REQUIRES: most >= 3.
std::string shortened(std::string_view text, std::size_t most);

// A whole message as one line that a terminal shows as it is, whatever is in it: no control
// characters, nothing that is not UTF-8, no characters that break lines or reorder text. A very
// long one loses its middle. Error and every line on standard error go through it.
std::string one_line(std::string_view message);

// A cell of a Markdown table: the same, and bars do not end it.
std::string table_cell(std::string_view text);

}  // namespace quantspec
