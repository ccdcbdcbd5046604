// The character classes that tokenizers ask for, and replacing text. Thread-safe: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace quantspec {

// `text` with every `from` replaced by `to`. REQUIRES: `from` is not empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// The property White_Space.
bool is_white_space(char32_t code);

// What a regular expression's \w means: letters, marks, decimal and letter numbers, connectors.
bool is_word_character(char32_t code);

// General category N: decimal, letter and other numbers.
bool is_numeric(char32_t code);

}  // namespace quantspec
