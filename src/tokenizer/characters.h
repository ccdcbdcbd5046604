// The character classes that tokenizers ask for, and replacing text. Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quantspec {

// `text` with every `from` replaced by `to`; more than `most` bytes of that may be cut there.
// REQUIRES: `from` is not empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        std::size_t most = SIZE_MAX);

// The property White_Space.
bool is_white_space(char32_t code);

// What a regular expression's \w means: letters, marks, decimal and letter numbers, connectors.
bool is_word_character(char32_t code);

// General category N: decimal, letter and other numbers.
bool is_numeric(char32_t code);

}  // namespace quantspec
