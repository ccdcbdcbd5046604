// What this library says that is no error: to the application's logger of spdlog of the name
// "quantspec", else to standard error, since standard output is the application's. A message is one
// line, whatever is in it (base/shown.h). Thread-safe.
#pragma once

#include <string_view>

#include "base/message.h"

namespace quantspec {

void log_warning(const Message& message);
void log_debug(const Message& message);  // not shown unless asked for
// What is being caught (current_error), as a warning, where all else goes on.
void log_caught(std::string_view who) noexcept;

// How all of it calls fields from here on: the application's, as its logger is. Before: plain_name.
void name_fields_in_log(FieldNames names);

}  // namespace quantspec
