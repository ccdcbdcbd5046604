#include "chat/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace quantspec::jinja {

namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool ends_line(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

// The character before `end`, which may be no UTF-8.
Utf8Step step_before(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80)
    --begin;
  const Utf8Step step = next_utf8(text.substr(begin));
  if (step.length == text.size() - begin) return step;
  return next_utf8(text.substr(text.size() - 1));
}

std::string reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

}  // namespace

bool is_space(char32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
  return code == 0x85 || category(code) == UTF8PROC_CATEGORY_ZS ||
         category(code) == UTF8PROC_CATEGORY_ZL || category(code) == UTF8PROC_CATEGORY_ZP;
}

bool is_printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

std::size_t num_characters(std::string_view text) {
  std::size_t num = 0;
  for (; !text.empty(); ++num) text.remove_prefix(next_utf8(text).length);
  return num;
}

std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += next_utf8(text.substr(at)).length;
  return at;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> all;
  while (!text.empty()) {
    all.push_back(text.substr(0, next_utf8(text).length));
    text.remove_prefix(all.back().size());
  }
  return all;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  std::vector<std::string_view> set;
  if (chars) set = characters(*chars);
  std::sort(set.begin(), set.end());
  const auto goes = [&](std::string_view character, char32_t code) {
    return chars ? std::binary_search(set.begin(), set.end(), character) : is_space(code);
  };
  while (side != Side::kRight && !text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (!goes(text.substr(0, step.length), step.code)) break;
    text.remove_prefix(step.length);
  }
  while (side != Side::kLeft && !text.empty()) {
    const Utf8Step step = step_before(text);
    if (!goes(text.substr(text.size() - step.length), step.code)) break;
    text.remove_suffix(step.length);
  }
  return text;
}

// NOTE: memmem is linear, std::string_view::find is not.
std::size_t find(std::string_view text, std::string_view what, std::size_t from) {
  if (from > text.size()) return text.npos;
  if (what.empty()) return from;
  if (what.size() > text.size() - from) return text.npos;
  const void* at = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return at == nullptr ? text.npos : std::size_t(static_cast<const char*>(at) - text.data());
}

std::size_t count(std::string_view text, std::string_view what) {
  if (what.empty()) return num_characters(text) + 1;
  std::size_t num = 0;
  for (std::size_t at = find(text, what); at != text.npos; at = find(text, what, at + what.size()))
    ++num;
  return num;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t most) {
  std::string out;
  if (from.empty()) {  // before each character, and at the end
    for (; most != 0; --most) {
      out += to;
      if (text.empty()) return out;
      const std::size_t length = next_utf8(text).length;
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
    return out.append(text);
  }
  for (; most != 0; --most) {
    const std::size_t at = find(text, from);
    if (at == text.npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, std::int64_t most) {
  std::vector<std::string_view> parts;
  if (separator) {
    for (; most != 0; --most) {
      const std::size_t at = find(text, *separator);
      if (at == text.npos) break;
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at + separator->size());
    }
    parts.push_back(text);
    return parts;
  }
  for (;; --most) {
    text = strip(text, Side::kLeft);
    if (text.empty()) return parts;
    if (most == 0) break;
    std::size_t end = 0;
    while (end < text.size()) {
      const Utf8Step step = next_utf8(text.substr(end));
      if (is_space(step.code)) break;
      end += step.length;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view text,
                                     std::optional<std::string_view> separator, std::int64_t most) {
  std::vector<std::string_view> parts;
  if (separator) {
    const std::string back = reversed(text);
    const std::string mark = reversed(*separator);
    for (std::size_t from = 0; most != 0; --most) {
      const std::size_t at = jinja::find(back, mark, from);
      if (at == back.npos) break;
      const std::size_t end = back.size() - at;  // of the separator, in `text` as it was
      parts.push_back(text.substr(end));
      text = text.substr(0, end - mark.size());
      from = at + mark.size();
    }
    parts.push_back(text);
  } else {
    for (;; --most) {
      text = strip(text, Side::kRight);
      if (text.empty()) break;
      if (most == 0) {
        parts.push_back(text);
        break;
      }
      std::size_t begin = text.size();
      while (begin > 0) {
        const Utf8Step step = step_before(text.substr(0, begin));
        if (is_space(step.code)) break;
        begin -= step.length;
      }
      parts.push_back(text.substr(begin));
      text = text.substr(0, begin);
    }
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (!ends_line(step.code) || step.state != Utf8State::kValid) {
      at += step.length;
      continue;
    }
    const std::size_t end = at + (text.substr(at).starts_with("\r\n") ? 2 : step.length);
    lines.push_back(text.substr(0, keep_ends ? end : at));
    text.remove_prefix(end);
    at = 0;
  }
  if (!text.empty()) lines.push_back(text);
  return lines;
}

}  // namespace quantspec::jinja
