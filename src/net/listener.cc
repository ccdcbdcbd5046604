#include "net/listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/shown.h"
#include "net/address.h"
#include "net/net.h"

namespace quantspec::net {

namespace {

constexpr int kBacklog = 1024;  // connections that wait for accept()

[[noreturn]] void cannot_listen(const std::string& where, const std::string& why) {
  fail(ErrorKind::kInvalidRequest, "cannot listen on {}: {}", where, why);
}

std::string why(int error) {
  if (error == EADDRINUSE) return "the port is taken; another one works, or 0 for any that is free";
  if (error == EACCES) return "not permitted; ports below 1024 need privileges";
  if (error == EADDRNOTAVAIL) return "this machine does not have that address";
  return std::strerror(error);
}

int open_socket(int family, const std::string& where) {
  const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) cannot_listen(where, std::strerror(errno));
  return socket;
}

}  // namespace

Listener::Listener(const Options& options) {
  try {
    if (options.unix_path.empty()) {
      listen_tcp(options);
    } else {
      listen_unix(options.unix_path);
    }
  } catch (...) {
    if (socket_ >= 0) close(socket_);
    throw;
  }
}

Listener::~Listener() {
  if (socket_ >= 0) close(socket_);
  struct stat now {};  // another server may have put its own there since
  if (is_unix() && lstat(unix_path_.c_str(), &now) == 0 && now.st_dev == device_ &&
      now.st_ino == inode_) {
    unlink(unix_path_.c_str());
  }
}

int Listener::take_socket() { return std::exchange(socket_, -1); }

void Listener::listen_tcp(const Options& options) {
  const std::string port = std::to_string(options.port);
  const std::string where = shown(options.host) + " port " + port;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(options.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) cannot_listen(where, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, freeaddrinfo);
  family_ = address->ai_family;
  socket_ = open_socket(family_, where);
  const int on = 1;  // or a port is taken for a minute after its server ended
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket_, address->ai_addr, address->ai_addrlen) != 0 || listen(socket_, kBacklog) != 0) {
    cannot_listen(where, why(errno));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  check(getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size) == 0,
        "a bound socket has a name");
  const auto* name = reinterpret_cast<const sockaddr*>(&bound);
  address_ = address_text(name);
  is_loopback_ = net::is_loopback(name);
  port_ = static_cast<std::uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1)));
}

void Listener::listen_unix(const std::string& path) {
  const std::string where = "unix:" + shown(path);
  sockaddr_un name{};
  name.sun_family = family_ = AF_UNIX;
  if (path.size() >= sizeof name.sun_path || path.find('\0') != path.npos) {
    cannot_listen(where, "a path of at most 107 bytes works");
  }
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const auto* address = reinterpret_cast<const sockaddr*>(&name);
  // A server that was killed leaves its file, to which nobody answers.
  struct stat old {};
  if (lstat(path.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode)) cannot_listen(where, "there is a file that is no socket");
    const int probe = open_socket(AF_UNIX, where);
    const bool is_alive = connect(probe, address, sizeof name) == 0;
    const bool is_refused = !is_alive && errno == ECONNREFUSED;
    close(probe);
    if (!is_refused) cannot_listen(where, "another server listens there");
    unlink(path.c_str());
  }
  socket_ = open_socket(AF_UNIX, where);
  if (bind(socket_, address, sizeof name) != 0) cannot_listen(where, std::strerror(errno));
  struct stat made {};
  if (listen(socket_, kBacklog) != 0 || lstat(path.c_str(), &made) != 0) {
    const int error = errno;
    unlink(path.c_str());
    cannot_listen(where, std::strerror(error));
  }
  unix_path_ = path;
  device_ = made.st_dev;
  inode_ = made.st_ino;
  address_ = "unix:" + path;
}

}  // namespace quantspec::net
