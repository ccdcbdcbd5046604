// What the connections of a server share. All but `loop` and the counters is the I/O thread's.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/head_check.h"
#include "net/net.h"

namespace quantspec::net {

class Connection;

// The way for other threads to the I/O thread. It outlives its server, since exchanges may.
class Loop {
 public:
  explicit Loop(boost::asio::io_context& context) : context_(&context) {}

  // Runs f on the I/O thread, unless that has ended. Thread-safe.
  template <typename F>
  void post(F f) {
    std::lock_guard lock(mutex_);
    if (context_ != nullptr) boost::asio::post(*context_, std::move(f));
  }
  void close() {
    std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

 private:
  std::mutex mutex_;
  boost::asio::io_context* context_;
};

struct Hub {
  explicit Hub(Options given) : options(std::move(given)) {}

  // Of what the server refuses itself; made by the caller's function where there is one.
  Answer refusal(const Refusal& refusal);
  void add(const std::shared_ptr<Connection>& connection);
  void remove(Connection& connection);

  Options options;
  std::vector<std::string> allowed_hosts;  // of Options, or of this machine; empty: any
  bool is_stopping = false;
  std::vector<std::shared_ptr<Connection>> connections;
  std::unordered_map<std::string, int> connections_of;  // by client_key()
  std::size_t body_bytes = 0;                           // of bodies that are being read
  int num_refused = 0;                   // of the connections: those that only get a refusal
  std::array<char, 16 << 10> discarded;  // what nobody reads
  std::shared_ptr<Loop> loop;

  struct Counters {
    std::atomic<std::size_t> connections, exchanges;
    std::atomic<std::uint64_t> accepted, requests, refused;
  };
  Counters counters{};
};

}  // namespace quantspec::net
