#include "base/utf8.h"

namespace quantspec {

namespace {

// What may follow a lead byte: the second byte is in [low, high], the others in [80, BF]
// (Unicode 15, table 3-7).
struct Lead {
  std::size_t length;  // of the sequence; 0 for a byte that leads nothing
  unsigned char low;
  unsigned char high;
};

Lead lead(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step next_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const Lead first = lead(byte(0));
  if (first.length == 1) return {Utf8State::kValid, 1, byte(0)};
  if (first.length == 0) return {Utf8State::kInvalid, 1, 0xFFFD};
  char32_t code = byte(0) & (0x7F >> first.length);
  for (std::size_t i = 1; i < first.length; ++i) {
    if (i == text.size()) return {Utf8State::kUnfinished, i, 0xFFFD};
    const unsigned char low = i == 1 ? first.low : 0x80;
    const unsigned char high = i == 1 ? first.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8State::kInvalid, i, 0xFFFD};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {Utf8State::kValid, first.length, code};
}

Utf8Step last_utf8(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return next_utf8(text.substr(start));
}

void append_utf8(char32_t code, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string repair_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    repaired +=
        step.state == Utf8State::kValid ? text.substr(0, step.length) : kReplacementCharacter;
    text.remove_prefix(step.length);
  }
  return repaired;
}

}  // namespace quantspec
