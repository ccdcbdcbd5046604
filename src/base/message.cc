#include "base/message.h"

namespace quantspec {

namespace {

// A control character (SUBSTITUTE): of text, it is kept as the escape that one_line() would make.
constexpr char kMark = '\x1A';
constexpr std::string_view kEscapedMark = "\\u001a";
constexpr char kEnd = '\0';

// The field of which `marked` has the mark at `at`.
Field field_at(std::string_view marked, std::size_t at) {
  return {marked.substr(at + 1, marked.find(kEnd, at) - at - 1)};
}

}  // namespace

std::string Message::marked(Field field) {
  std::string out(1, kMark);
  out += field.plain_name;
  out += kEnd;
  return out;
}

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
      const Field field = field_at(marked_, i);
      out += names(field);
      i += field.plain_name.size() + 1;
    } else {
      out += marked_[i];
    }
  }
  return out;
}

std::optional<Field> Message::subject() const {
  if (!marked_.starts_with(kMark)) return std::nullopt;
  return field_at(marked_, 0);
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
