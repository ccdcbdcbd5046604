// Bytes written as text, in two ways.
//
// The byte alphabet of GPT-2: every byte is written as one printable character, so that a
// vocabulary of strings can hold any bytes. Bytes that are printable in Latin-1 stand for
// themselves; the others, in order, are U+0100 and up.
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.2.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quantspec {

std::string to_byte_alphabet(std::string_view bytes);

// The inverse; none if `text` has a character outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

// The byte of a byte-fallback token, such as "<0x0A>" (SentencePiece); none for any other token.
std::optional<char> byte_of_token(std::string_view token);

}  // namespace quantspec
