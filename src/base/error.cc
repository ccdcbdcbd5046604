#include "base/error.h"

namespace quantspec {

void check(bool condition, std::string_view what, std::source_location where) {
  if (condition) return;
  throw Error(ErrorKind::kInternal,
              fmt::format("internal error: {} ({}:{})", what, where.file_name(), where.line()));
}

}  // namespace quantspec
