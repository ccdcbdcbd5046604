#include "base/error.h"

#include "base/shown.h"

namespace quantspec {

Error::Error(ErrorKind kind, const std::string& message)
    : std::runtime_error(one_line(message)), kind_(kind) {}

void check(bool condition, std::string_view what, std::source_location where) {
  if (condition) return;
  throw Error(ErrorKind::kInternal,
              fmt::format("internal error: {} ({}:{})", what, where.file_name(), where.line()));
}

}  // namespace quantspec
