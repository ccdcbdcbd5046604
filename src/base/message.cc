#include "base/message.h"

namespace quantspec {

namespace {

// A control character (SUBSTITUTE): of text, it is kept as the escape that one_line() would make.
constexpr char kMark = '\x1A';
constexpr std::string_view kEscapedMark = "\\u001a";

}  // namespace

std::string Message::marked(Field field) { return {kMark, static_cast<char>(field)}; }

std::string Message::unmarked(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == kMark) {
      out += kEscapedMark;
    } else {
      out += c;
    }
  }
  return out;
}

std::string Message::text(FieldNames names) const {
  std::string out;
  for (std::size_t i = 0; i < marked_.size(); ++i) {
    if (marked_[i] == kMark) {
      out += names(static_cast<Field>(marked_[++i]));
    } else {
      out += marked_[i];
    }
  }
  return out;
}

std::optional<Field> Message::subject() const {
  if (!marked_.starts_with(kMark)) return std::nullopt;
  return static_cast<Field>(marked_[1]);
}

Message& Message::operator+=(const Message& more) {
  marked_ += more.marked_;
  return *this;
}

Message Message::without(const Message& part) const {
  Message rest = *this;
  const std::size_t at = marked_.find(part.marked_);
  if (at != marked_.npos) rest.marked_.erase(at, part.marked_.size());
  return rest;
}

}  // namespace quantspec
