#include "tokenizer/byte_text.h"

#include <array>

#include "base/utf8.h"

namespace quantspec {

namespace {

constexpr int kAlphabetEnd = 0x144;  // 0x100 plus the 68 bytes that are not printable

bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  std::array<std::string, 256> text_of_byte;
  std::array<int, kAlphabetEnd> byte_of_code;  // -1: not in the alphabet

  Alphabet() {
    byte_of_code.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code = is_printable(byte) ? byte : next++;
      append_utf8(static_cast<char32_t>(code), text_of_byte[byte]);
      byte_of_code[code] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) text += alphabet().text_of_byte[static_cast<unsigned char>(c)];
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.code >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet().byte_of_code[step.code];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    text.remove_prefix(step.length);
  }
  return bytes;
}

std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const std::string_view digits = "0123456789ABCDEFabcdef";
    const std::size_t digit = digits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int>(digit < 16 ? digit : digit - 6);
  }
  return static_cast<char>(value);
}

}  // namespace quantspec
