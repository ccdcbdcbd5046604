// The one exception type of the project. Expected outcomes (a stop reason, a missing optional
// key) are values; an Error is for what the caller could not have expected.
//
// A message is one line that says what was wrong, where (file, tensor, flag), and what would work;
// what a file or a user put into it that is no plain text is escaped (base/shown.h).
// Applications map `kind()` once: the command line to exit codes, the server to HTTP statuses.
#pragma once

#include <fmt/core.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace quantspec {

enum class ErrorKind {
  kInvalidRequest,    // the caller asked for something impossible: bad flag, prompt too long
  kUnsupportedModel,  // a valid model that needs a feature that is not there
  kCorruptFile,       // a file that contradicts itself or its format
  kOutOfMemory,       // refused before allocating
  kDevice,            // an accelerator failed
  kInternal,          // a bug in this project
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Throws Error(kind) with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error(kInternal) naming the caller's file and line: for preconditions (REQUIRES) and
// invariants of this project, never for bad input.
void check(bool condition, std::string_view what,
           std::source_location where = std::source_location::current());

}  // namespace quantspec
