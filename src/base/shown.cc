#include "base/shown.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace quantspec {

namespace {

constexpr std::size_t kMostOfName = 100;  // bytes, as are the others
constexpr std::size_t kMostOfLine = 4000;
constexpr std::size_t kLineEnd = 500;  // of a line that is cut, where messages say what would work

// Characters that no font draws and that terminals obey: controls, breaks of lines, marks that
// change the direction of what follows.
bool is_obeyed(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C || code == 0x200E ||
         code == 0x200F || (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

void append_escaped(std::string_view bytes, const Utf8Step& step, std::string& out) {
  if (step.state != Utf8State::kValid) {
    for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  } else if (step.code == '\n') {
    out += "\\n";
  } else if (step.code == '\t') {
    out += "\\t";
  } else if (step.code == '\r') {
    out += "\\r";
  } else {
    out += fmt::format("\\u{:04x}", static_cast<unsigned>(step.code));
  }
}

// `quoted`: with escapes for what quotes would need.
std::string escaped(std::string_view text, bool quoted) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const std::string_view bytes = text.substr(0, step.length);
    text.remove_prefix(step.length);
    if (step.state != Utf8State::kValid || is_obeyed(step.code)) {
      append_escaped(bytes, step, out);
    } else {
      if (quoted && (step.code == '"' || step.code == '\\')) out += '\\';
      out += bytes;
    }
  }
  return out;
}

// Where a cut at `at` or a little before does not part a character.
std::size_t whole_characters(std::string_view text, std::size_t at) {
  for (int back = 0; back < 3 && at > 0; ++back, --at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) return at;
  }
  return at;
}

}  // namespace

std::string shown(std::string_view text) {
  const bool cut = text.size() > kMostOfName;
  if (cut) text = text.substr(0, whole_characters(text, kMostOfName - 3));
  return '"' + escaped(text, true) + (cut ? "...\"" : "\"");
}

std::string one_line(std::string_view message) {
  if (message.size() <= kMostOfLine) return escaped(message, false);
  const std::size_t begin = whole_characters(message, kMostOfLine - kLineEnd);
  const std::size_t end = whole_characters(message, message.size() - kLineEnd);
  return fmt::format("{} ... {}", escaped(message.substr(0, begin), false),
                     escaped(message.substr(end), false));
}

}  // namespace quantspec
