// What this library says that is no error: to the application's logger of spdlog of the name
// "quantspec", else to standard error, since standard output is the application's. A message is one
// line, whatever is in it (base/shown.h). Thread-safe.
#pragma once

#include <string_view>

namespace quantspec {

void log_warning(std::string_view message);
void log_debug(std::string_view message);  // not shown unless asked for

}  // namespace quantspec
