#include "base/error.h"

#include <exception>
#include <new>
#include <utility>

#include "base/shown.h"

namespace quantspec {

Error::Error(ErrorKind kind, Message message)
    : kind_(kind), message_(std::move(message)), text_(one_line(message_.text())) {}

std::string Error::what(FieldNames names) const { return one_line(message_.text(names)); }

namespace {

const Error kMemoryRanOut(ErrorKind::kOutOfMemory, "memory ran out");  // short: held in place

Error described(std::string_view who) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kOutOfMemory, Message::format("{}: memory ran out", who)};
  } catch (const std::exception& error) {
    return {ErrorKind::kInternal, Message::format("{}: {}", who, error.what())};
  } catch (...) {
    return {ErrorKind::kInternal,
            Message::format("{}: something was thrown that says nothing", who)};
  }
}

}  // namespace

const Error& memory_ran_out() noexcept { return kMemoryRanOut; }

Error current_error(std::string_view who) noexcept {
  try {
    return described(who);
  } catch (...) {
    return memory_ran_out();
  }
}

void check(bool condition, std::string_view what, std::source_location where) {
  if (condition) return;
  throw Error(ErrorKind::kInternal,
              Message::format("internal error: {} ({}:{})", what, where.file_name(), where.line()));
}

}  // namespace quantspec
