#include "base/error.h"

#include <utility>

#include "base/shown.h"

namespace quantspec {

Error::Error(ErrorKind kind, Message message)
    : std::runtime_error(one_line(message.text())), kind_(kind), message_(std::move(message)) {}

std::string Error::what(FieldNames names) const { return one_line(message_.text(names)); }

void check(bool condition, std::string_view what, std::source_location where) {
  if (condition) return;
  throw Error(ErrorKind::kInternal,
              Message::format("internal error: {} ({}:{})", what, where.file_name(), where.line()));
}

}  // namespace quantspec
