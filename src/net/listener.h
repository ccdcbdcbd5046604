// A socket that listens, before any event loop has it.
#pragma once

#include <cstdint>
#include <string>

namespace quantspec::net {

struct Options;

// Owns its file descriptor until it is taken, and the file of a Unix socket to the end.
class Listener {
 public:
  // Throws kInvalidRequest: no such host, a port that is taken, a path that is in use.
  explicit Listener(const Options& options);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int take_socket();
  int family() const { return family_; }
  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }
  bool is_unix() const { return !unix_path_.empty(); }
  bool is_loopback() const { return is_loopback_; }  // nothing but this machine reaches it

 private:
  void listen_tcp(const Options& options);
  void listen_unix(const std::string& path);

  int socket_ = -1;
  int family_ = 0;
  bool is_loopback_ = false;
  std::uint16_t port_ = 0;
  std::string address_;
  std::string unix_path_;
  std::uint64_t device_ = 0, inode_ = 0;  // of the file that was made
};

}  // namespace quantspec::net
