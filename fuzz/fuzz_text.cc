// Text: what messages show of it is short, on one line, and nothing that a terminal obeys; UTF-8 is
// read as utf8proc reads it; require_text() takes what is UTF-8 without NUL.
#include <utf8proc.h>

#include "base/error.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "fuzz_input.h"
#include "tokenizer/tokenizer.h"

using namespace quantspec;

namespace {

bool is_plain_line(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(step.code));
    const bool is_obeyed = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_ZL ||
                           category == UTF8PROC_CATEGORY_ZP || step.code == 0x061C ||
                           step.code == 0x200E || step.code == 0x200F ||
                           (step.code >= 0x202A && step.code <= 0x202E) ||
                           (step.code >= 0x2066 && step.code <= 0x2069);
    if (step.state != Utf8State::kValid || is_obeyed) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

bool is_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    utf8proc_int32_t code;
    const auto length = utf8proc_iterate(bytes + at, utf8proc_ssize_t(text.size() - at), &code);
    const Utf8Step step = next_utf8(text.substr(at));
    require((length > 0) == (step.state == Utf8State::kValid));
    if (length <= 0) return false;
    require(step.length == std::size_t(length) && step.code == char32_t(code));
    at += step.length;
    require(last_utf8(text.substr(0, at)).code == step.code);
    std::string again;
    append_utf8(step.code, again);
    require(text.substr(at - step.length, step.length) == again);
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string name = shown(text);
  require(is_plain_line(name) && name.size() <= 1000 && name.front() == '"' && name.back() == '"');
  const std::string line = one_line(text);
  require(is_plain_line(line) && line.size() <= 40'000);
  if (is_plain_line(text) && text.size() <= 1500) require(line == text);

  const std::string repaired = repair_utf8(text);
  require(is_utf8(repaired) && (repaired == text) == is_utf8(text));
  bool taken = true;
  try {
    require_text(text, "f");
  } catch (const Error& error) {
    taken = false;
    require(error.kind() == ErrorKind::kCorruptFile);
  }
  require(taken == (is_utf8(text) && text.find('\0') == text.npos));
  return 0;
}
