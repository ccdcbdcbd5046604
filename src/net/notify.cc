#include "net/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace quantspec::net {

namespace {

std::optional<std::int64_t> number_in(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  std::int64_t number = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end || number <= 0) return std::nullopt;
  return number;
}

}  // namespace

bool notify_service(std::string_view lines) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un name{};
  const std::size_t length = path == nullptr ? 0 : std::strlen(path);
  if (length == 0 || length >= sizeof name.sun_path || (path[0] != '/' && path[0] != '@'))
    return false;
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path, length);
  if (path[0] == '@') name.sun_path[0] = '\0';  // a name without a file
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  const ssize_t sent = sendto(socket, lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                              reinterpret_cast<const sockaddr*>(&name), size);
  close(socket);
  return sent == static_cast<ssize_t>(lines.size());
}

std::optional<std::chrono::milliseconds> watchdog_time() {
  const auto process = number_in("WATCHDOG_PID");
  if (process && *process != getpid()) return std::nullopt;  // it is meant for another one
  const auto microseconds = number_in("WATCHDOG_USEC");
  if (!microseconds) return std::nullopt;
  return std::chrono::milliseconds(*microseconds / 2000);
}

}  // namespace quantspec::net
