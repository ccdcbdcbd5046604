#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

#include "base/error.h"
#include "base/shown.h"

namespace quantspec {

namespace {

std::shared_ptr<spdlog::logger> log() {
  if (auto logger = spdlog::get("quantspec")) return logger;
  static const auto own = [] {
    auto logger = std::make_shared<spdlog::logger>(
        "quantspec", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("quantspec: %l: %v");
    return logger;
  }();
  return own;
}

std::atomic<FieldNames> names_in_log = plain_name;

std::string line(const Message& message) { return one_line(message.text(names_in_log)); }

}  // namespace

void log_warning(const Message& message) { log()->warn(line(message)); }
void log_debug(const Message& message) { log()->debug(line(message)); }
void log_caught(std::string_view who) noexcept {
  const Error error = current_error(who);
  try {
    log_warning(error.message());
  } catch (...) {  // there is no memory to say so
  }
}
void name_fields_in_log(FieldNames names) { names_in_log = names; }

}  // namespace quantspec
