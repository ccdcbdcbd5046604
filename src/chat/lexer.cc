#include "chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/shown.h"
#include "chat/text.h"

namespace quantspec::jinja {

void refuse_syntax(std::uint32_t line, std::string_view what) {
  fail(ErrorKind::kCorruptFile, "chat template, line {}: {}", line, what);
}

void refuse_construct(std::uint32_t line, std::string_view what) {
  fail(ErrorKind::kUnsupportedModel, "chat template, line {}: {}", line, what);
}

std::string normalized_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (source.substr(i + 1).starts_with('\n')) {
      continue;
    } else {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}
int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// A string's characters between its quotes, with Python's escapes.
std::string unescaped(std::string_view text, std::uint32_t line) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    constexpr std::string_view kNames = "nrtabfv\\'\"", kMeanings = "\n\r\t\a\b\f\v\\'\"";
    const std::size_t name = kNames.find(c);
    if (name != kNames.npos) {
      out += kMeanings[name];
    } else if (c == '\n') {
      continue;
    } else if (c >= '0' && c <= '7') {
      char32_t code = 0;
      std::size_t end = i;
      while (end < text.size() && end < i + 3 && text[end] >= '0' && text[end] <= '7')
        code = code * 8 + static_cast<char32_t>(text[end++] - '0');
      append_utf8(code, out);
      i = end - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      char32_t code = 0;
      for (std::size_t n = 0; n < digits; ++n) {
        const int digit = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
        if (digit < 0) refuse_syntax(line, fmt::format("\\{} needs {} digits", c, digits));
        code = code * 16 + static_cast<char32_t>(digit);
        ++i;
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        refuse_syntax(line, "an escape that is no character");
      append_utf8(code, out);
    } else if (c == 'N') {
      refuse_construct(line, "\\N{...} in a string is not supported");
    } else {
      (out += '\\') += c;
    }
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::deque<std::string>& literals)
      : source_(source), literals_(literals) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(TokenType::kEnd, {});
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return source_.substr(at_); }
  bool sees(std::string_view text) const { return rest().starts_with(text); }
  void add(TokenType type, std::string_view text) { tokens_.push_back({type, text, line_}); }
  void advance(std::size_t by) {
    const std::string_view passed = source_.substr(at_, by);
    line_ += static_cast<std::uint32_t>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += by;
  }
  void skip_space() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }
  // '-', '+' or 0.
  char take_sign() {
    const char sign = sees("-") ? '-' : sees("+") ? '+' : '\0';
    if (sign != '\0') advance(1);
    return sign;
  }

  // Up to the next tag, and that tag.
  void read_data() {
    std::size_t tag = source_.find('{', at_);
    while (tag != source_.npos && tag + 1 < source_.size() &&
           std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos)
      tag = source_.find('{', tag + 1);
    if (tag == source_.npos || tag + 1 == source_.size()) {
      add(TokenType::kData, rest());
      advance(rest().size());
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    add_text(source_.substr(at_, tag - at_), sign, kind == '{');
    advance(tag - at_ + 2);
    take_sign();
    line_starting_ = false;
    if (kind == '#') {
      skip_comment();
    } else if (kind == '{') {
      add(TokenType::kVariableBegin, "{{");
      read_tag(false);
    } else if (!read_raw()) {
      add(TokenType::kBlockBegin, "{%");
      read_tag(true);
    }
  }

  // Text before a tag of that sign.
  void add_text(std::string_view text, char sign, bool is_variable) {
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && !is_variable) {
      const std::size_t line = text.rfind('\n') + 1;  // 0: there is none
      if ((line > 0 || line_starting_) && strip(text.substr(line), Side::kBoth).empty())
        text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenType::kData, text);
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == source_.npos) refuse_syntax(line_, "a comment does not end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    end_tag(sign);
  }

  // What follows the end of a block or a comment that had that sign.
  void end_tag(char sign) {
    line_starting_ = false;
    if (sign == '-') {
      const std::size_t before = at_;
      skip_space();
      line_starting_ = at_ > before && source_[at_ - 1] == '\n';
    } else if (sign != '+' && sees("\n")) {
      advance(1);
      line_starting_ = true;
    }
  }

  // Whether `word` stands at `at` between white space; then `at` is behind it and that.
  bool skip_word(std::size_t& at, std::string_view word) const {
    std::string_view text = strip(source_.substr(at), Side::kLeft);
    if (!text.starts_with(word)) return false;
    text = strip(text.substr(word.size()), Side::kLeft);
    at = source_.size() - text.size();
    return true;
  }

  // Behind {% and its sign: whether it is {% raw %}, which is then read to its end.
  bool read_raw() {
    std::size_t at = at_;
    if (!skip_word(at, "raw")) return false;
    const bool strips = source_.substr(at).starts_with("-%}");
    if (!strips && !source_.substr(at).starts_with("%}")) return false;
    advance(at + (strips ? 3 : 2) - at_);
    if (strips) {
      const std::size_t before = at_;
      skip_space();
      line_starting_ = at_ > before && source_[at_ - 1] == '\n';
    }
    for (std::size_t tag = source_.find("{%", at_); tag != source_.npos;
         tag = source_.find("{%", tag + 1)) {
      std::size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : '\0';
      if (sign == '-' || sign == '+') ++end;
      if (!skip_word(end, "endraw")) continue;
      const std::string_view close = source_.substr(end);
      const bool has_sign = close.starts_with("-%}") || close.starts_with("+%}");
      if (!has_sign && !close.starts_with("%}")) continue;
      add_text(source_.substr(at_, tag - at_), sign, false);
      advance(end + (has_sign ? 3 : 2) - at_);
      end_tag(has_sign ? close.front() : '\0');
      return true;
    }
    refuse_syntax(line_, "{% raw %} does not end");
  }

  // The tokens of a tag, to its end.
  void read_tag(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    std::string open;  // brackets that have not ended
    for (;;) {
      skip_space();
      if (at_ == source_.size()) refuse_syntax(line_, "the template ends within a tag");
      if (open.empty()) {
        const char sign = sees("-") ? '-' : is_block && sees("+") ? '+' : '\0';
        if (source_.substr(at_ + (sign == '\0' ? 0 : 1)).starts_with(end)) {
          add(is_block ? TokenType::kBlockEnd : TokenType::kVariableEnd, end);
          advance(sign == '\0' ? 2 : 3);
          // {{ }} keeps the new line that follows.
          end_tag(is_block || sign == '-' ? sign : '+');
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return read_number();
    if (is_name(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name(source_[end])) ++end;
      return take(TokenType::kName, end - at_);
    }
    if (c == '"' || c == '\'') return read_string(c);
    constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view pair : kPairs) {
      if (sees(pair)) return take(TokenType::kOperator, 2);
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      refuse_syntax(
          line_, fmt::format("unexpected {}", shown(rest().substr(0, next_utf8(rest()).length))));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : static_cast<char>(c + 2);
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) refuse_syntax(line_, fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    take(TokenType::kOperator, 1);
  }

  void take(TokenType type, std::size_t size) {
    add(type, source_.substr(at_, size));
    advance(size);
  }

  // The end of digits that begin at `at`, in which a _ may stand between two.
  std::size_t skip_digits(std::size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) ||
            (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1]))))
      ++at;
    return at;
  }
  bool digit_at(std::size_t at) const { return at < source_.size() && is_digit(source_[at]); }

  void read_number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    std::size_t end = skip_digits(at_);
    if (!after_dot) {
      bool is_float = false;
      if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        end = skip_digits(end + 1);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
          ++exponent;
        if (digit_at(exponent)) {
          end = skip_digits(exponent);
          is_float = true;
        }
      }
      if (is_float) return take(TokenType::kFloat, end - at_);
    }
    if (end < source_.size() && end == at_ + 1 && source_[at_] == '0' &&
        std::string_view("xXbBoO").find(source_[end]) != std::string_view::npos)
      refuse_construct(line_, "integers that are not decimal are not supported");
    take(TokenType::kInteger, end - at_);
  }

  void read_string(char quote) {
    std::size_t end = at_ + 1;
    bool has_escapes = false;
    for (; end < source_.size() && source_[end] != quote; ++end) {
      if (source_[end] == '\\') {
        has_escapes = true;
        ++end;
      }
    }
    if (end >= source_.size()) refuse_syntax(line_, "a string does not end");
    std::string_view text = source_.substr(at_ + 1, end - at_ - 1);
    if (has_escapes) text = literals_.emplace_back(unescaped(text, line_));
    add(TokenType::kString, text);
    advance(end + 1 - at_);
  }

  std::string_view source_;
  std::deque<std::string>& literals_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, std::deque<std::string>& literals) {
  return Lexer(source, literals).run();
}

}  // namespace quantspec::jinja
