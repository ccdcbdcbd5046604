#include "tokenizer/characters.h"

#include <utf8proc.h>

namespace quantspec {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        std::size_t most) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos && result.size() <= most;
       at = text.find(from, done)) {
    result += text.substr(done, at - done);
    result += to;
    done = at + from.size();
  }
  result += text.substr(done);
  return result;
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_word_character(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code == 0x200C || code == 0x200D;  // joiners
  }
}

bool is_numeric(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

}  // namespace quantspec
