#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/json_field.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 14;

// Letters that may follow a backslash: both libraries read them alike, once \s is spelled out.
constexpr std::string_view kCommonEscapes = "pPdDnrtfsSx";

[[noreturn]] void refuse(const JsonField& place, std::string_view what) {
  place.unsupported(fmt::format("{} in a regular expression", what),
                    "the patterns of Llama 3, Qwen and GPT-2");
}

bool is_ascii_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The pattern in PCRE2's language.
// NOTE: PCRE2 counts U+180E as \s; Oniguruma and Unicode do not. \p{White_Space} is exact.
std::string translate(std::string_view pattern, const JsonField& place) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\' && rest.size() > 1) {
      ++i;
      if (is_ascii_alphanumeric(rest[1]) && kCommonEscapes.find(rest[1]) == std::string::npos) {
        refuse(place, fmt::format("\\{}", rest[1]));
      }
      if (rest[1] == 's') {
        out += "\\p{White_Space}";
      } else if (rest[1] == 'S') {
        out += "\\P{White_Space}";
      } else {
        out += rest.substr(0, 2);
      }
      continue;
    }
    if (in_class) {
      if (rest[0] == '[') refuse(place, "a class inside a class");
      if (rest.starts_with("&&")) refuse(place, "&& inside a class");
      in_class = rest[0] != ']';
    } else {
      for (const std::string_view flag : {"(?m", "(?s", "(?x", "(?#", "(*"}) {
        if (rest.starts_with(flag)) refuse(place, flag);
      }
      in_class = rest[0] == '[';
    }
    out += rest[0];
  }
  return out;
}

pcre2_code* compile(const std::string& pattern, const JsonField& place) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(error, message, sizeof message);
    refuse(place, fmt::format("\"{}\" at byte {}", reinterpret_cast<const char*>(message), offset));
  }
  // NOTE: a pattern that PCRE2 cannot JIT-compile is interpreted: same matches, about 5x slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

Regex::Regex(std::string_view pattern, const JsonField& place) {
  if (pattern.size() > kMaxPatternBytes) refuse(place, "a pattern of more than 16 KiB");
  code_ = {compile(translate(pattern, place), place),
           [](const pcre2_code* code) { pcre2_code_free(const_cast<pcre2_code*>(code)); }};
}

std::vector<TextSpan> Regex::cut(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::vector<TextSpan> spans;
  std::size_t done = 0;  // everything before is in `spans`
  for (std::size_t at = 0; at < text.size();) {
    // The text is valid UTF-8; checking it at every match would be quadratic.
    int found =
        pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      found = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          data.get(), nullptr);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      fail(ErrorKind::kInvalidRequest,
           "tokenizer: splitting the text at byte {} takes too long for its regular expression "
           "(PCRE2 error {})",
           at, found);
    }
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data.get());
    if (done < match[0]) spans.push_back({done, match[0], false});
    spans.push_back({match[0], match[1], true});
    done = match[1];
    at = match[1] > match[0]
             ? match[1]
             : match[1] + (match[1] < text.size() ? next_utf8(text.substr(match[1])).length : 1);
  }
  if (done < text.size()) spans.push_back({done, text.size(), false});
  return spans;
}

}  // namespace quantspec
