#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

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

}  // namespace

void log_warning(std::string_view message) { log()->warn(one_line(message)); }
void log_debug(std::string_view message) { log()->debug(one_line(message)); }

}  // namespace quantspec
