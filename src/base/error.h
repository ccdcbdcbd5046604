// The one exception type of the project. Expected outcomes (a stop reason, a missing optional
// key) are values; an Error is for what the caller could not have expected.
//
// A message is one line that says what was wrong, where (file, tensor, field), and what would work;
// what a file or a user put into it that is no plain text is escaped (base/shown.h). What a caller
// can set is named by Field (base/field.h), never by a flag. One that is about a value that the
// caller set begins with that field: "{} {}: supported are 64 and 128". Applications map `kind()`
// once: the command line to exit codes, the server to HTTP statuses.
#pragma once

#include <exception>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

#include "base/message.h"

namespace quantspec {

enum class ErrorKind {
  kInvalidRequest,    // the caller asked for something impossible: bad value, prompt too long
  kUnsupportedModel,  // a valid model that needs a feature that is not there
  kCorruptFile,       // a file that contradicts itself or its format
  kOutOfMemory,       // refused before allocating
  kDevice,            // an accelerator failed
  kInternal,          // a bug in this project
};

// A copy shares nothing with its original, so that each may be of a thread of its own.
// (std::runtime_error's copies share their text.)
class Error : public std::exception {
 public:
  Error(ErrorKind kind, Message message);
  ErrorKind kind() const { return kind_; }
  // What the caller set wrongly: the message begins with it. nullopt: no single value is to blame.
  // REQUIRES: this error outlives it.
  std::optional<Field> field() const { return message_.subject(); }
  const Message& message() const { return message_; }

  const char* what() const noexcept override { return text_.c_str(); }  // plain names of fields
  std::string what(FieldNames names) const;                             // the same line with these

 private:
  ErrorKind kind_;
  Message message_;
  std::string text_;
};

// Throws Error(kind) with Message::format().
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, MessageFormat<Args...> format, const Args&... args) {
  throw Error(kind, Message::format<Args...>(format, args...));
}

// kOutOfMemory, of which a copy takes no memory: where there is none left to say more.
const Error& memory_ran_out() noexcept;

// What is being caught, as an Error: memory that ran out is kOutOfMemory, and what is no Error of
// ours but was thrown by `who`, kInternal; memory_ran_out() where there is none to say so.
// REQUIRES: called where something is caught.
Error current_error(std::string_view who) noexcept;

// Throws Error(kInternal) naming the caller's file and line: for preconditions (REQUIRES) and
// invariants of this project, never for bad input.
void check(bool condition, std::string_view what,
           std::source_location where = std::source_location::current());

}  // namespace quantspec
