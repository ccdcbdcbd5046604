#include "comm/network_meeting.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace quantspec {
namespace {

constexpr double kQuiet = 3000;                    // milliseconds after which who waits says so
constexpr std::chrono::milliseconds kNap{50};      // between tries
constexpr std::chrono::milliseconds kHello{2000};  // in which who connects says who it is

enum class Line : std::uint32_t { kData, kNotices };

// The first that goes over a connection, from who made it.
struct Hello {
  std::array<char, 8> magic = {'Q', 'S', 'r', 'a', 'n', 'k', 's', '1'};
  std::uint64_t job = 0;
  std::uint64_t machine = 0;
  std::uint32_t rank = 0, size = 0;
  Line line = Line::kData;
  std::uint32_t port = 0;  // at which it listens
};

// Where a rank listens.
struct Listens {
  sockaddr_storage address;
  std::uint64_t machine;
};

[[noreturn]] void fail_to_meet(const std::string& why) {
  fail(ErrorKind::kDevice, "ranks cannot meet: {}", why);
}

std::uint64_t hash_of(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }

// Changes with every start of a machine, and no two have the same; containers that have addresses
// of their own are machines of their own.
std::uint64_t this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  if (std::getline(file, line) && !error) return hash_of(line + network.string());
  fail_to_meet("this machine has no boot_id or no namespaces in /proc");
}

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

// Whoever is silent because its machine, or the network, is gone is found out.
void watch_over(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 8000);
}

std::uint16_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}
socklen_t size_of_address(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// IPv4 as such, where a socket for both says it as IPv6.
sockaddr_storage plain(const sockaddr_storage& address) {
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return address;
  sockaddr_storage made{};
  auto& four = reinterpret_cast<sockaddr_in&>(made);
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
  return made;
}

bool write_all(int socket, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = send(socket, bytes, size, MSG_NOSIGNAL);
    if (written <= 0) return false;
    bytes += written;
    size -= written;
  }
  return true;
}

// Within so many milliseconds.
bool read_all(int socket, void* data, std::size_t size, double within) {
  auto* bytes = static_cast<char*>(data);
  const Stopwatch clock;
  while (size > 0) {
    const double left = within - clock.milliseconds();
    pollfd at{socket, POLLIN, 0};
    if (left <= 0 || (poll(&at, 1, static_cast<int>(left) + 1) < 0 && errno != EINTR)) return false;
    const ssize_t got = recv(socket, bytes, size, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    bytes += std::max<ssize_t>(got, 0);
    size -= std::max<ssize_t>(got, 0);
  }
  return true;
}

// Listens at a port of all of this machine's addresses; 0: at any.
Descriptor open_door(int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    Descriptor door(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!door.there()) continue;
    set(door.number(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (family == AF_INET6) set(door.number(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    port_of(any) = htons(static_cast<std::uint16_t>(port));
    if (bind(door.number(), reinterpret_cast<sockaddr*>(&any), size_of_address(any)) == 0 &&
        listen(door.number(), SOMAXCONN) == 0) {
      return door;
    }
    if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) break;
  }
  fail_to_meet(
      fmt::format("port {} of this machine is not to be had ({})", port, std::strerror(errno)));
}

int port_of_door(const Descriptor& door) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(door.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(port_of(address));
}

class Meeting {
 public:
  Meeting(const NetworkPlace& place, std::chrono::milliseconds patience)
      : place_(place),
        patience_(static_cast<double>(patience.count())),
        door_(open_door(place.rank == 0 ? place.port : 0)),
        met_{std::vector<Peer>(place.size), 1},
        listening_(place.size) {
    own_ = {.job = hash_of(place.job),
            .machine = this_machine(),
            .rank = static_cast<std::uint32_t>(place.rank),
            .size = static_cast<std::uint32_t>(place.size),
            .port = static_cast<std::uint32_t>(port_of_door(door_))};
  }

  Met meet() {
    if (place_.rank == 0) {
      const auto all_data = [&] { return count(&Peer::data) == place_.size - 1; };
      while (!all_data()) accept_one();
      listening_[0].machine = own_.machine;
      for (int rank = 1; rank < place_.size; ++rank) {
        write_all(met_.peers[rank].data.number(), listening_.data(), bytes_of_table());
      }
    } else {
      // Whoever else is at that port, before rank 0 is there, may close the connection.
      do {
        met_.peers[0].data = reach_first();
      } while (!read_all(met_.peers[0].data.number(), listening_.data(), bytes_of_table(), left()));
      sockaddr_storage first{};
      socklen_t size = sizeof(first);
      getpeername(met_.peers[0].data.number(), reinterpret_cast<sockaddr*>(&first), &size);
      listening_[0].address = plain(first);
      for (int rank = 0; rank < place_.rank; ++rank) {
        if (rank > 0) met_.peers[rank].data = reach(rank, Line::kData);
        met_.peers[rank].notices = reach(rank, Line::kNotices);
      }
    }
    const auto all_here = [&] {
      return count(&Peer::data) == place_.size - 1 && count(&Peer::notices) == place_.size - 1;
    };
    while (!all_here()) accept_one();
    for (int rank = 0; rank < place_.size; ++rank) {
      if (rank != place_.rank && listening_[rank].machine == own_.machine) ++met_.num_here;
    }
    return std::move(met_);
  }

 private:
  std::size_t bytes_of_table() const { return listening_.size() * sizeof(Listens); }
  double left() const { return patience_ - clock_.milliseconds(); }
  int count(Descriptor Peer::*line) const {
    return static_cast<int>(
        std::ranges::count_if(met_.peers, [&](const Peer& peer) { return (peer.*line).there(); }));
  }

  void say_that_it_waits(const std::string& for_whom) {
    if (clock_.milliseconds() < kQuiet || std::exchange(has_said_, true)) return;
    log_warning(Message::format("rank {} waits for {}", place_.rank, for_whom));
  }

  // Whoever comes next, if it is a rank of this job.
  void accept_one() {
    say_that_it_waits(
        fmt::format("others, of {} ranks {} are here", place_.size, 1 + count(&Peer::data)));
    if (left() <= 0) {
      fail(ErrorKind::kDevice, "{} of {} ranks came within {:.0f} s",
           1 + std::min(count(&Peer::data), place_.rank > 0 ? count(&Peer::notices) : place_.size),
           place_.size, patience_ / 1000);
    }
    pollfd at{door_.number(), POLLIN, 0};
    if (poll(&at, 1, static_cast<int>(std::min(left(), kQuiet)) + 1) <= 0) return;
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    Descriptor other(
        accept4(door_.number(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
    Hello hello{};
    const Hello wanted;
    if (!other.there() || !read_all(other.number(), &hello, sizeof(hello), kHello.count()) ||
        hello.magic != wanted.magic || hello.job != own_.job) {
      return;
    }
    const auto rank = static_cast<int>(hello.rank);
    const bool can_be = hello.size == own_.size && rank > place_.rank && rank < place_.size &&
                        (hello.line == Line::kData || hello.line == Line::kNotices);
    Descriptor* const line = can_be ? &line_of(rank, hello.line) : nullptr;
    if (line == nullptr || line->there()) {
      fail(ErrorKind::kDevice, "a process of the job {} is rank {} of {}, which cannot be",
           place_.job, hello.rank, hello.size);
    }
    watch_over(other.number());
    *line = std::move(other);
    port_of(from) = htons(static_cast<std::uint16_t>(hello.port));
    listening_[rank] = {plain(from), hello.machine};
  }
  Descriptor& line_of(int rank, Line line) {
    return line == Line::kData ? met_.peers[rank].data : met_.peers[rank].notices;
  }

  // A connection over which this rank has said who it is.
  std::optional<Descriptor> connected(const sockaddr* address, socklen_t size, Line line) {
    Descriptor made(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made.there()) return std::nullopt;
    watch_over(made.number());
    const timeval within{2, 0};
    setsockopt(made.number(), SOL_SOCKET, SO_SNDTIMEO, &within, sizeof(within));
    if (connect(made.number(), address, size) != 0) return std::nullopt;
    Hello hello = own_;
    hello.line = line;
    if (!write_all(made.number(), &hello, sizeof(hello))) return std::nullopt;
    return made;
  }

  // Rank 0, which may not be there yet.
  Descriptor reach_first() {
    const std::string port = std::to_string(place_.port);
    std::string error;
    while (left() > 0) {
      addrinfo wanted{}, *found = nullptr;
      wanted.ai_socktype = SOCK_STREAM;
      const int status = getaddrinfo(place_.address.c_str(), port.c_str(), &wanted, &found);
      const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
      if (status != 0) error = fmt::format(" ({})", gai_strerror(status));
      for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
        auto made = connected(at->ai_addr, at->ai_addrlen, Line::kData);
        if (made) return std::move(*made);
        error = fmt::format(" ({})", std::strerror(errno));
      }
      say_that_it_waits(fmt::format("rank 0 at {} port {}", place_.address, place_.port));
      std::this_thread::sleep_for(kNap);
    }
    fail(ErrorKind::kDevice, "rank {} found no rank 0 at {} port {} within {:.0f} s{}", place_.rank,
         place_.address, place_.port, patience_ / 1000, error);
  }

  Descriptor reach(int rank, Line line) {
    sockaddr_storage address = listening_[rank].address;
    // Who is on rank 0's machine came to it from an address that may mean nothing elsewhere.
    if (rank > 0 && listening_[rank].machine == listening_[0].machine) {
      const std::uint16_t port = port_of(address);
      address = listening_[0].address;
      port_of(address) = port;
    }
    auto made =
        connected(reinterpret_cast<const sockaddr*>(&address), size_of_address(address), line);
    if (made) return std::move(*made);
    fail_to_meet(fmt::format("rank {} cannot reach rank {} ({}); every machine of a job has to",
                             place_.rank, rank, std::strerror(errno)));
  }

  const NetworkPlace& place_;
  const double patience_;
  const Stopwatch clock_;
  Descriptor door_;
  Hello own_;
  Met met_;
  std::vector<Listens> listening_;  // by rank
  bool has_said_ = false;
};

}  // namespace

Met meet_over_network(const NetworkPlace& place, std::chrono::milliseconds patience) {
  return Meeting(place, patience).meet();
}

}  // namespace quantspec
