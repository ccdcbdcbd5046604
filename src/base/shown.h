// Text of files and users in messages: what a terminal would obey, or what would break a line, is
// written as an escape, and what is long is cut. Thread-safe: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace quantspec {

// A name or value from a file or from the command line, in quotes and short: "lm_head.weight",
// "a\nb", "\x80", "aaaa...".
std::string shown(std::string_view text);

// A whole message as one line that a terminal shows as it is, whatever is in it: no control
// characters, nothing that is not UTF-8, no characters that break lines or reorder text. A very
// long one loses its middle. Error and every line on standard error go through it.
std::string one_line(std::string_view message);

}  // namespace quantspec
