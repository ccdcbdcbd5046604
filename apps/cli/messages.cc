#include "apps/cli/messages.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "apps/cli/flags.h"
#include "base/log.h"
#include "base/shown.h"

namespace quantspec::cli {

namespace {

class MessageSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto level = spdlog::level::to_string_view(message.level);
    say_line({level.data(), level.size()}, {message.payload.data(), message.payload.size()});
  }
  void flush_() override {}
};

}  // namespace

void keep_standard_streams() {
  // open() takes the lowest number that is free. Reading what can only be written fails, and the
  // other way round.
  while (true) {
    const int fd = open("/dev/null", fcntl(0, F_GETFD) < 0 ? O_WRONLY : O_RDONLY);
    if (fd >= 0 && fd <= 2) continue;
    if (fd > 2) close(fd);
    return;
  }
}

void set_up_log(Loudness loudness) {
  auto logger = std::make_shared<spdlog::logger>("quantspec", std::make_shared<MessageSink>());
  logger->set_level(loudness == Loudness::kVerbose ? spdlog::level::debug
                    : loudness == Loudness::kQuiet ? spdlog::level::err
                                                   : spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  name_fields_in_log(flag_of);
}

void say(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void say_line(std::string_view level, std::string_view message) {
  say(fmt::format("quantspec: {}: {}\n", level, one_line(message)));
}

void warn(std::string_view message) { spdlog::warn("{}", message); }

}  // namespace quantspec::cli
