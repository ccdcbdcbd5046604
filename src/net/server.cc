// The listening socket, the I/O thread and its clock.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/address.h"
#include "net/connection.h"
#include "net/hub.h"
#include "net/listener.h"
#include "net/net.h"

namespace quantspec::net {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr int kOtherFiles = 128;       // that the process has open besides connections
constexpr int kRefusedAtOnce = 64;     // connections beyond the limits that are told so
constexpr Milliseconds kBackoff{100};  // when no connection can be accepted

// How many connections files can be opened for; raises the limit of files if need be.
int allowed_connections(int wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto needed = static_cast<rlim_t>(wanted) + kOtherFiles;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return wanted;
  const int allowed = std::max<int>(static_cast<int>(limit.rlim_cur) - kOtherFiles, 1);
  log_warning(Message::format("{} connections at once, not {}: the limit of open files is {}",
                              allowed, wanted, limit.rlim_cur));
  return allowed;
}

Milliseconds shortest(const Limits& limits) {
  return std::min({limits.header_time, limits.body_time, limits.idle_time, limits.write_time,
                   limits.ping_time, limits.close_time});
}

void set_option(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value,
             sizeof value);  // where it fails it would only have helped
}

// Of a connection of TCP: no event waits for a next one, what is gone without a word is noticed,
// and what a slow client does not take stays in its outbox, where it is counted.
void set_tcp_options(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 64 << 10);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 15);
}

std::vector<std::string> hosts_of(const Options& options, const Listener& listener) {
  if (!options.allowed_hosts.empty() || !listener.is_loopback()) return options.allowed_hosts;
  return {"localhost", "127.0.0.1", "[::1]", options.host};
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(Options options)
      : hub_(std::move(options)), listener_(hub_.options), acceptor_(context_), clock_(context_) {
    check(hub_.options.handle != nullptr, "a server has a handler");
    Limits& limits = hub_.options.limits;
    limits.connections = allowed_connections(limits.connections);
    tick_ = std::clamp(shortest(limits) / 10, Milliseconds(5), Milliseconds(250));
    hub_.allowed_hosts = hosts_of(hub_.options, listener_);
    hub_.loop = std::make_shared<Loop>(context_);
    acceptor_.assign({listener_.family(), 0}, listener_.take_socket());
    asio::co_spawn(context_, accept_all(), asio::detached);
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() { stop(Milliseconds(0)); }

  void stop(Milliseconds patience) {
    hub_.loop->post([this, until = Clock::now() + patience] { begin_stop(until); });
    std::lock_guard lock(join_mutex_);
    if (!thread_.joinable()) return;
    thread_.join();
    hub_.loop->close();
  }

  const Listener& listener() const { return listener_; }

  Stats stats() const {
    const Hub::Counters& counters = hub_.counters;
    return {counters.connections, counters.exchanges, counters.accepted, counters.requests,
            counters.refused};
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "net");
    sigset_t all;  // signals are the application's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    for (;;) {
      try {
        context_.run();
        return;
      } catch (...) {
        log_caught("the I/O thread");
      }
    }
  }

  asio::awaitable<void> accept_all() {
    asio::steady_timer pause(context_);
    Clock::time_point warned{};
    while (acceptor_.is_open()) {
      error_code error;
      Connection::Socket socket(context_);
      Connection::Socket::endpoint_type peer;
      co_await acceptor_.async_accept(socket, peer,
                                      asio::redirect_error(asio::use_awaitable, error));
      if (!error) {
        try {
          welcome(std::move(socket), peer.data());
        } catch (...) {
          log_caught("a new connection");
        }
      } else if (error != asio::error::operation_aborted &&
                 error != asio::error::connection_aborted) {
        const auto now = Clock::now();
        if (now - warned >= std::chrono::seconds(10)) {
          log_warning(
              Message::format("no connection can be accepted: {}", std::strerror(error.value())));
          warned = now;
        }
        pause.expires_after(kBackoff);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      }
    }
  }

  void welcome(Connection::Socket socket, const sockaddr* peer) {
    const Limits& limits = hub_.options.limits;
    if (hub_.is_stopping) return;
    ++hub_.counters.accepted;
    fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    if (!listener_.is_unix()) set_tcp_options(socket.native_handle());
    const std::string key = client_key(peer);
    const auto known = hub_.connections_of.find(key);
    const auto open = static_cast<int>(hub_.connections.size()) - hub_.num_refused;
    const int of_key = key.empty() || known == hub_.connections_of.end() ? 0 : known->second;
    const bool is_full = open >= limits.connections;
    const bool is_refused = is_full || of_key >= limits.connections_per_address;
    if (is_refused && hub_.num_refused >= kRefusedAtOnce) return;
    const auto connection =
        std::make_shared<Connection>(hub_, std::move(socket), address_text(peer), key);
    hub_.add(connection);
    if (!is_refused) {
      connection->serve();
    } else if (is_full) {
      connection->serve_refusal(503, "the server has too many connections");
    } else {
      connection->serve_refusal(429, "this address has too many connections");
    }
    if (!std::exchange(is_ticking_, true)) asio::co_spawn(context_, sweep_all(), asio::detached);
  }

  // Runs while there are connections, so that an idle server does nothing.
  asio::awaitable<void> sweep_all() {
    while (!hub_.connections.empty()) {
      error_code ignored;
      clock_.expires_after(tick_);
      co_await clock_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      const auto now = Clock::now();
      // NOTE: none leaves the list meanwhile; what is cut does so in a turn of its own.
      for (const auto& connection : hub_.connections) connection->sweep(now);
      if (hub_.is_stopping && now >= stop_at_) cut_all();
    }
    is_ticking_ = false;
  }

  void begin_stop(Clock::time_point until) {
    stop_at_ = hub_.is_stopping ? std::min(stop_at_, until) : until;
    if (!std::exchange(hub_.is_stopping, true)) {
      error_code ignored;
      acceptor_.close(ignored);
      for (const auto& connection : hub_.connections) connection->retire();
    }
    if (Clock::now() >= stop_at_) cut_all();
  }

  void cut_all() {
    for (const auto& connection : hub_.connections) connection->cut(Gone::kStopped);
  }

  Hub hub_;
  Listener listener_;
  asio::io_context context_{1};
  asio::basic_socket_acceptor<asio::generic::stream_protocol> acceptor_;
  asio::steady_timer clock_;
  Milliseconds tick_{};
  bool is_ticking_ = false;
  Clock::time_point stop_at_{};
  std::mutex join_mutex_;
  std::thread thread_;
};

Server::Server(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;
const std::string& Server::address() const { return impl_->listener().address(); }
std::uint16_t Server::port() const { return impl_->listener().port(); }
void Server::stop(Milliseconds patience) { impl_->stop(patience); }
Stats Server::stats() const { return impl_->stats(); }

}  // namespace quantspec::net
