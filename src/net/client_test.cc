// What test_support.h declares.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <utility>

#include "net/test_support.h"

namespace quantspec::net {

namespace {

constexpr int kPatience = 20'000;  // ms, after which a test has failed

}  // namespace

Client::Client(std::uint16_t port, int receive_buffer)
    : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  if (receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
    throw std::runtime_error(std::string("cannot connect: ") + std::strerror(errno));
  }
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Client::Client(const std::string& unix_path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, unix_path.c_str(), sizeof name.sun_path - 1);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
    throw std::runtime_error(std::string("cannot connect: ") + std::strerror(errno));
  }
}

Client::~Client() { close(); }
Client::Client(Client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), buffer_(std::move(other.buffer_)) {}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void Client::end() { shutdown(socket_, SHUT_WR); }

void Client::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void Client::reset() {
  const linger now{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

bool Client::fill() {
  pollfd events{socket_, POLLIN, 0};
  if (poll(&events, 1, kPatience) <= 0) {
    ADD_FAILURE() << "the server says nothing";
    return false;
  }
  char bytes[16384];
  const ssize_t n = recv(socket_, bytes, sizeof bytes, 0);
  if (n < 0) is_reset_ = true;
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(n));
  return true;
}

std::string Client::take(std::size_t n) {
  while (buffer_.size() < n && fill()) {
  }
  std::string taken = buffer_.substr(0, n);
  buffer_.erase(0, n);
  return taken;
}

std::string Client::read_until(std::string_view mark) {
  std::size_t at;
  while ((at = buffer_.find(mark)) == buffer_.npos && fill()) {
  }
  return take(at == buffer_.npos ? buffer_.size() : at + mark.size());
}

std::string Client::read_all() {
  while (fill()) {
  }
  return std::exchange(buffer_, {});
}

bool Client::is_closed() {
  read_all();
  return true;
}

std::string Client::Reply::header(std::string_view name) const {
  for (const Header& header : headers) {
    if (equal_ignoring_case(header.name, name)) return header.value;
  }
  return {};
}

Client::Reply Client::read(bool to_head) {
  Reply reply;
  std::string line = read_until("\r\n");
  if (!line.starts_with("HTTP/1.1 ")) return reply;
  reply.status = std::stoi(line.substr(9, 3));
  while ((line = read_until("\r\n")).size() > 2) {
    const std::size_t colon = line.find(": ");
    reply.headers.push_back(
        {line.substr(0, colon), line.substr(colon + 2, line.size() - colon - 4)});
  }
  if (to_head || reply.status < 200) return reply;
  if (const std::string length = reply.header("Content-Length"); !length.empty()) {
    reply.body = take(std::stoul(length));
  } else if (reply.header("Transfer-Encoding") == "chunked") {
    for (std::size_t size; (size = std::stoul("0" + read_until("\r\n"), nullptr, 16)) > 0;) {
      reply.body += take(size);
      take(2);
    }
    take(2);
  }
  return reply;
}

TestServer::TestServer(const std::function<void(Options&)>& change) {
  Options options;
  options.limits.close_time = Milliseconds(500);
  options.handle = [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); };
  change(options);
  server_ = std::make_unique<Server>(std::move(options));
}

std::string TestServer::answer_to(std::string_view bytes) const {
  Client client = connect();
  client.send(bytes);
  std::string answer = client.read_all();
  EXPECT_FALSE(client.is_reset());
  return answer;
}

void TestServer::handle(std::shared_ptr<Exchange> exchange) {
  const Request& request = exchange->request();
  const Headers plain = {{"Content-Type", "text/plain"}};
  exchange->on_gone([this](Gone why) {
    std::lock_guard lock(mutex_);
    gone_.push_back(why);
  });
  if (request.path == "/") {
    exchange->respond({200, plain, "hello\n"});
  } else if (request.path == "/echo") {
    exchange->respond({200, plain, exchange->take_body()});
  } else if (request.path == "/hold") {
    std::lock_guard lock(mutex_);
    held_.push_back(std::move(exchange));
  } else if (request.path == "/stream") {
    auto stream = exchange->stream();
    std::lock_guard lock(mutex_);
    streams_.push_back(std::move(stream));
  } else if (request.path == "/throw") {
    throw std::runtime_error("a handler that throws");
  } else if (request.path != "/forget") {
    exchange->respond({404, plain, "no such path\n"});
  }
}

namespace {

template <typename T>
std::shared_ptr<T> oldest(std::mutex& mutex, std::vector<std::shared_ptr<T>>& kept) {
  std::shared_ptr<T> found;
  EXPECT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    if (kept.empty()) return false;
    found = std::move(kept.front());
    kept.erase(kept.begin());
    return true;
  }));
  return found;
}

}  // namespace

std::shared_ptr<Exchange> TestServer::held() { return oldest(mutex_, held_); }
std::shared_ptr<SseStream> TestServer::streaming() { return oldest(mutex_, streams_); }

std::vector<Gone> TestServer::gone() {
  std::lock_guard lock(mutex_);
  return gone_;
}

void TestServer::expect_idle() {
  EXPECT_TRUE(soon([&] {
    const Stats stats = server_->stats();
    return stats.connections == 0 && stats.exchanges == 0;
  }));
}

bool soon(const std::function<bool()>& f) {
  for (int i = 0; i < 10'000; ++i) {
    if (f()) return true;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return false;
}

int open_files() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

std::string get(std::string_view path, std::string_view headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers);
}

std::string post(std::string_view path, std::string_view body, std::string_view headers) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}", path,
                     headers, body.size(), body);
}

}  // namespace quantspec::net
