// A template's text as tokens, by the rules of jinja2 with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace quantspec::jinja {

enum class TokenType : std::uint8_t {
  kData,           // text outside of tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type;
  std::string_view text;  // of a string: its characters
  std::uint32_t line;
};

// With line ends that are all \n, without the last of them.
std::string normalized_source(std::string_view source);

// Tokens point into `source`, which is normalized, and into `literals`, which gets the strings that
// have escapes. Throws Error: kCorruptFile.
std::vector<Token> tokens_of(std::string_view source, std::deque<std::string>& literals);

// Errors name the line. `kind` is of the model.
[[noreturn]] void refuse_syntax(std::uint32_t line, std::string_view what);
[[noreturn]] void refuse_construct(std::uint32_t line, std::string_view what);  // unsupported

}  // namespace quantspec::jinja
