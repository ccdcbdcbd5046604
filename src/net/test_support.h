// For tests: a client that sends any bytes, and can hang up at any of them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "net/net.h"

namespace quantspec::net {

class Client {
 public:
  explicit Client(std::uint16_t port, int receive_buffer = 0);
  explicit Client(const std::string& unix_path);
  ~Client();
  Client(Client&& other) noexcept;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(std::string_view bytes);  // all of them; false: the server has closed
  void end();                         // FIN; can still read
  void close();
  void reset();  // RST
  int socket() const { return socket_; }

  struct Reply {
    int status = 0;  // 0: there was none
    Headers headers;
    std::string body;
    std::string header(std::string_view name) const;
  };
  // The next answer, by its length or its chunks. `to_head`: without a body.
  Reply read(bool to_head = false);
  // Bytes until the text has that in it, all before included; what there is if they end before.
  std::string read_until(std::string_view mark);
  // All until the server closes. is_reset(): it did so by RST.
  std::string read_all();
  bool is_reset() const { return is_reset_; }
  bool is_closed();  // by the server, within the time of a test

 private:
  bool fill();
  std::string take(std::size_t n);

  int socket_ = -1;
  bool is_reset_ = false;
  std::string buffer_;
};

// A server with some routes: / says hello, /echo sends the body back, /hold keeps the exchange,
// /stream begins a stream and keeps it, /throw throws, /forget forgets. Times are short.
class TestServer {
 public:
  explicit TestServer(const std::function<void(Options&)>& change = [](Options&) {});

  Server& server() { return *server_; }
  std::uint16_t port() const { return server_->port(); }
  Client connect() const { return Client(server_->port()); }
  // What one request on a connection of its own gets, until the server closes it.
  std::string answer_to(std::string_view bytes) const;

  // What is kept, oldest first; waits for it.
  std::shared_ptr<Exchange> held();
  std::shared_ptr<SseStream> streaming();
  std::vector<Gone> gone();  // of all so far

  // Waits until nothing is open.
  void expect_idle();
  void stop() { server_.reset(); }

 private:
  void handle(std::shared_ptr<Exchange> exchange);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::vector<std::shared_ptr<SseStream>> streams_;
  std::vector<Gone> gone_;
  std::unique_ptr<Server> server_;
};

// Whether `f` becomes true, within ten seconds.
bool soon(const std::function<bool()>& f);
int open_files();
// "GET /path" and so on, with a Host.
std::string get(std::string_view path, std::string_view headers = {});
std::string post(std::string_view path, std::string_view body, std::string_view headers = {});

}  // namespace quantspec::net
