// UTF-8, one character at a time.
// Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quantspec {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";         // U+FEFF

enum class Utf8State {
  kValid,       // a whole character
  kInvalid,     // no continuation can make these bytes valid
  kUnfinished,  // the text ends inside what may become a character
};

struct Utf8Step {
  Utf8State state;
  std::size_t length;  // bytes; of the maximal subpart (Unicode 15, section 3.9) unless kValid
  char32_t code;       // U+FFFD unless kValid
};

// The first character of `text`. REQUIRES: text is not empty.
Utf8Step next_utf8(std::string_view text);

// The last character of `text`. REQUIRES: text is valid UTF-8 and not empty.
Utf8Step last_utf8(std::string_view text);

void append_utf8(char32_t code, std::string& text);

// Replaces every maximal invalid subpart by U+FFFD.
std::string repair_utf8(std::string_view text);

}  // namespace quantspec
