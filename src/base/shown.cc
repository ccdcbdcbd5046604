#include "base/shown.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace quantspec {

namespace {

constexpr std::size_t kMostOfName = 100;  // bytes with escapes, as are the others
constexpr std::size_t kMostOfLine = 1500;
constexpr std::size_t kLineEnd = 400;  // of a line that is cut, where messages say what would work

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

// The characters with which `text` begins whose escapes take no more than `most` bytes.
std::string escaped_begin(std::string_view text, std::size_t most, bool quoted) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = next_utf8(text).length;
    const std::string next = escaped(text.substr(0, length), quoted);
    if (out.size() + next.size() > most) break;
    out += next;
    text.remove_prefix(length);
  }
  return out;
}

// Likewise those with which it ends.
std::string escaped_end(std::string_view text, std::size_t most) {
  if (text.size() > most) text = text.substr(whole_characters(text, text.size() - most));
  std::string out = escaped(text, false);
  while (out.size() > most) {
    const std::size_t length = next_utf8(text).length;
    out.erase(0, escaped(text.substr(0, length), false).size());
    text.remove_prefix(length);
  }
  return out;
}

// Whether the escapes take no more than `most` bytes, known without making all of them.
bool is_short(std::string_view text, std::size_t most, bool quoted) {
  return text.size() <= most && escaped(text, quoted).size() <= most;
}

}  // namespace

std::string shown(std::string_view text) {
  if (is_short(text, kMostOfName, true)) return '"' + escaped(text, true) + '"';
  return '"' + escaped_begin(text, kMostOfName - 3, true) + "...\"";
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  return std::string(text.substr(0, whole_characters(text, most - 3))) + "...";
}

std::string one_line(std::string_view message) {
  if (is_short(message, kMostOfLine, false)) return escaped(message, false);
  return fmt::format("{} ... {}", escaped_begin(message, kMostOfLine - kLineEnd, false),
                     escaped_end(message, kLineEnd));
}

std::string table_cell(std::string_view text) {
  std::string cell;
  for (const char c : one_line(text)) cell += c == '|' ? std::string("\\|") : std::string(1, c);
  return cell;
}

}  // namespace quantspec
