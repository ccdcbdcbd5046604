// What Python's str does, on UTF-8. Positions and lengths are of characters where it is said, else
// of bytes. A byte that is no UTF-8 counts as a character. Every search is linear. Thread-safe:
// pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace quantspec::jinja {

bool is_space(char32_t code);      // str.isspace() of one character
bool is_printable(char32_t code);  // repr() shows it as it is
bool is_word(char32_t code);       // \w of a regular expression

std::size_t num_characters(std::string_view text);
// Where character `index` begins, in bytes; the end of the text when there are not as many.
std::size_t byte_of(std::string_view text, std::size_t index);
std::vector<std::string_view> characters(std::string_view text);

enum class Side { kBoth, kLeft, kRight };
// `chars`: what is stripped, each of its characters; nullopt: white space.
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> chars = std::nullopt);

// npos when it is not there.
std::size_t find(std::string_view text, std::string_view what, std::size_t from = 0);
std::size_t count(std::string_view text, std::string_view what);
// `most` < 0: all.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t most);
// `separator` nullopt: runs of white space. REQUIRES: it is not empty.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, std::int64_t most);
std::vector<std::string_view> rsplit(std::string_view text,
                                     std::optional<std::string_view> separator, std::int64_t most);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);

// str.isdigit() and its like, by name; nullopt: there is no such method.
std::optional<bool> ask(std::string_view text, std::string_view method);

}  // namespace quantspec::jinja
