// Upper and lower case, and what kind of characters a text has.
#include <utf8proc.h>

#include <functional>

#include "chat/text.h"

namespace quantspec::jinja {

namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_lower_letter(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }
bool is_upper_letter(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_cased(char32_t code) {
  return is_lower_letter(code) || is_upper_letter(code) || category(code) == UTF8PROC_CATEGORY_LT;
}
bool is_letter(char32_t code) {
  const auto of = category(code);
  return of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_LO;
}
bool is_numeric(char32_t code) {
  const auto of = category(code);
  return of >= UTF8PROC_CATEGORY_ND && of <= UTF8PROC_CATEGORY_NO;
}
bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t code) {
  return is_decimal(code) || code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089);
}

// Letters that become several in upper case; with the first alone in upper case where a word begins
// with it. NOTE: the Greek and Armenian ones of Unicode's SpecialCasing are not there.
struct Special {
  char32_t code;
  const char* upper;
  const char* title;
};
constexpr Special kSpecial[] = {
    {0xDF, "SS", "Ss"},
    {0x149, "\xCA\xBCN", "\xCA\xBCN"},
    {0x1F0, "J\xCC\x8C", "J\xCC\x8C"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
};

const Special* special(char32_t code) {
  if (code < 0xDF) return nullptr;
  for (const Special& of : kSpecial) {
    if (of.code == code) return &of;
  }
  return nullptr;
}

void append_upper(char32_t code, std::string& out) {
  if (const Special* of = special(code)) {
    out += of->upper;
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))), out);
  }
}

void append_title(char32_t code, std::string& out) {
  if (const Special* of = special(code)) {
    out += of->title;
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))), out);
  }
}

constexpr char32_t kSigma = 0x3A3, kFinalSigma = 0x3C2;

// `after_letter`, `before_letter`: a capital sigma that ends a word is another small one.
void append_lower(char32_t code, bool after_letter, bool before_letter, std::string& out) {
  if (code == kSigma && after_letter && !before_letter) {
    append_utf8(kFinalSigma, out);
  } else if (code == 0x130) {
    out += "i\xCC\x87";
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
  }
}

bool begins_with_cased(std::string_view text) {
  return !text.empty() && is_cased(next_utf8(text).code);
}

// Hands each character on, with what follows it; bytes that are no UTF-8 stay as they are.
std::string convert(std::string_view text,
                    const std::function<void(char32_t, std::string_view, std::string&)>& append) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const std::string_view bytes = text.substr(0, step.length);
    text.remove_prefix(step.length);
    if (step.state == Utf8State::kValid) {
      append(step.code, text, out);
    } else {
      out += bytes;
    }
  }
  return out;
}

bool all(std::string_view text, bool (*is)(char32_t)) {
  if (text.empty()) return false;
  for (; !text.empty(); text.remove_prefix(next_utf8(text).length)) {
    if (!is(next_utf8(text).code)) return false;
  }
  return true;
}

// Whether there is a letter with a case, and none but of that one.
bool all_cased(std::string_view text, bool (*is)(char32_t)) {
  bool any = false;
  for (; !text.empty(); text.remove_prefix(next_utf8(text).length)) {
    const char32_t code = next_utf8(text).code;
    if (!is_cased(code)) continue;
    if (!is(code)) return false;
    any = true;
  }
  return any;
}

}  // namespace

bool is_word(char32_t code) { return code == '_' || is_letter(code) || is_numeric(code); }

std::string upper(std::string_view text) {
  return convert(
      text, [](char32_t code, std::string_view, std::string& out) { append_upper(code, out); });
}

std::string lower(std::string_view text) {
  bool after = false;
  return convert(text, [&](char32_t code, std::string_view rest, std::string& out) {
    append_lower(code, after, begins_with_cased(rest), out);
    after = is_cased(code);
  });
}

std::string title(std::string_view text) {
  bool after = false;
  return convert(text, [&](char32_t code, std::string_view rest, std::string& out) {
    if (after) {
      append_lower(code, true, begins_with_cased(rest), out);
    } else {
      append_title(code, out);
    }
    after = is_cased(code);
  });
}

std::string capitalize(std::string_view text) {
  bool first = true, after = false;
  return convert(text, [&](char32_t code, std::string_view rest, std::string& out) {
    if (first) {
      append_title(code, out);
    } else {
      append_lower(code, after, begins_with_cased(rest), out);
    }
    first = false;
    after = is_cased(code);
  });
}

std::string swap_case(std::string_view text) {
  bool after = false;
  return convert(text, [&](char32_t code, std::string_view rest, std::string& out) {
    if (is_upper_letter(code)) {
      append_lower(code, after, begins_with_cased(rest), out);
    } else if (is_lower_letter(code)) {
      append_upper(code, out);
    } else {
      append_utf8(code, out);
    }
    after = is_cased(code);
  });
}

std::optional<bool> ask(std::string_view text, std::string_view method) {
  if (method == "isdigit") return all(text, is_digit);
  if (method == "isdecimal") return all(text, is_decimal);
  if (method == "isnumeric") return all(text, is_numeric);
  if (method == "isalpha") return all(text, is_letter);
  if (method == "isalnum")
    return all(text, [](char32_t c) { return is_letter(c) || is_numeric(c); });
  if (method == "isspace") return all(text, is_space);
  if (method == "isprintable") return text.empty() || all(text, is_printable);
  if (method == "isascii") return text.empty() || all(text, [](char32_t c) { return c < 0x80; });
  if (method == "islower") return all_cased(text, is_lower_letter);
  if (method == "isupper") return all_cased(text, is_upper_letter);
  return std::nullopt;
}

}  // namespace quantspec::jinja
