// How processes that a launcher made find each other. Of one machine: rank 0 listens at a socket
// whose name, which no file has, follows from the launcher's job, and gives the others the memory
// that they share. Of several: network_meeting.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/descriptor.h"

namespace quantspec {
namespace {

struct Launched {
  int rank, size;
  std::string job;  // the same in all processes, and in no other job
  // Where rank 0 is, if they are on several machines.
  std::string address = {};
  int port = 0;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

int number_of(const char* name) {
  const std::string text = variable(name);
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  fail(ErrorKind::kInvalidRequest, "the launcher's variable {} is '{}': it must be a number", name,
       text);
}

std::string job_of(const char* launcher, const char* name) {
  const std::string job = variable(name);
  if (!job.empty()) return fmt::format("{}-{}", launcher, job);
  fail(ErrorKind::kInvalidRequest,
       "the launcher's variable {} is not set, by which ranks of one job find each other", name);
}

// The first of a list of Slurm's, as "node[03-05,9],other": node03.
std::string first_host(const std::string& list) {
  const std::size_t end = list.find_first_of("[,");
  std::string host = list.substr(0, end);
  if (end == std::string::npos || list[end] == ',') return host;
  const std::size_t number_end = list.find_first_of("-,]", end);
  host += list.substr(end + 1, number_end - end - 1);
  const std::size_t close = list.find(']', end);
  if (close == std::string::npos) return host;
  return host + list.substr(close + 1, list.find(',', close) - close - 1);
}

// MASTER_ADDR and the port after MASTER_PORT, at which torchrun itself listens; what they are not
// set to is what the launcher says, if it does.
Launched on_machines(Launched launched, const std::string& address, int port) {
  constexpr int kMostPort = 65535;
  launched.address = variable("MASTER_ADDR");
  if (launched.address.empty()) launched.address = address;
  launched.port = 1 + (variable("MASTER_PORT").empty() ? port : number_of("MASTER_PORT"));
  if (!launched.address.empty() && launched.port > 1 && launched.port <= kMostPort) return launched;
  fail(
      ErrorKind::kInvalidRequest,
      "the launcher's processes are on several machines: MASTER_ADDR must name that of rank 0, and "
      "MASTER_PORT a port of it, of which the one after it is taken");
}

Launched by_variables() {
  constexpr int kPort = 29500;  // torchrun's
  // Of each launcher: rank, size, how many are on this machine (or how many machines), the job.
  if (!variable("OMPI_COMM_WORLD_RANK").empty()) {
    const Launched one{number_of("OMPI_COMM_WORLD_RANK"), number_of("OMPI_COMM_WORLD_SIZE"),
                       job_of("mpi", "PMIX_NAMESPACE")};
    return number_of("OMPI_COMM_WORLD_LOCAL_SIZE") == one.size ? one : on_machines(one, "", 0);
  }
  if (!variable("RANK").empty()) {
    const Launched one{number_of("RANK"), number_of("WORLD_SIZE"), job_of("torch", "MASTER_PORT")};
    const bool here =
        variable("LOCAL_WORLD_SIZE").empty() || number_of("LOCAL_WORLD_SIZE") == one.size;
    return here ? one : on_machines(one, "", 0);
  }
  if (!variable("SLURM_PROCID").empty()) {
    const Launched one{number_of("SLURM_PROCID"), number_of("SLURM_NTASKS"),
                       job_of("slurm", "SLURM_JOB_ID") + "-" + variable("SLURM_STEP_ID")};
    if (number_of("SLURM_NNODES") == 1) return one;
    const std::string of_step = variable("SLURM_STEP_NODELIST");
    return on_machines(one, first_host(of_step.empty() ? variable("SLURM_JOB_NODELIST") : of_step),
                       kPort);
  }
  if (!variable("LWS_WORKER_INDEX").empty()) {
    return on_machines({number_of("LWS_WORKER_INDEX"), number_of("LWS_GROUP_SIZE"),
                        job_of("lws", "LWS_LEADER_ADDRESS")},
                       variable("LWS_LEADER_ADDRESS"), kPort);
  }
  fail(ErrorKind::kInvalidRequest,
       "no launcher: none of RANK (torchrun), OMPI_COMM_WORLD_RANK (mpirun), SLURM_PROCID (srun) "
       "and "
       "LWS_WORKER_INDEX (LeaderWorkerSet) is set");
}

Launched launched_as() {
  const Launched launched = by_variables();
  if (launched.rank < launched.size) return launched;
  fail(ErrorKind::kInvalidRequest, "the launcher says that this is rank {} of {}", launched.rank,
       launched.size);
}

Descriptor make_socket(int more = 0) {
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | more, 0));
  if (made.number() >= 0) return made;
  fail(ErrorKind::kDevice, "ranks cannot meet: no socket ({})", std::strerror(errno));
}

// A name without a file: it begins with a zero.
std::pair<sockaddr_un, socklen_t> address_of(const Launched& launched) {
  const std::string name = fmt::format("quantspec-{}-{}", getuid(), launched.job);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) {
    fail(ErrorKind::kInvalidRequest, "the launcher's job has a name that is too long: {}",
         launched.job);
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool is_of_this_user(int socket) {
  ucred other{};
  socklen_t size = sizeof(other);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == getuid();
}

// Milliseconds after which who waits says so.
constexpr double kQuiet = 3000;

struct Hello {
  int rank, size;
};

// A message with room for a descriptor that goes with it.
class Passing {
 public:
  explicit Passing(Hello& hello) : data_{&hello, sizeof(hello)} {
    message_.msg_iov = &data_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
  }
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;

  bool send(int socket, int file) {
    cmsghdr* const rights = CMSG_FIRSTHDR(&message_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(file));
    std::memcpy(CMSG_DATA(rights), &file, sizeof(file));
    return sendmsg(socket, &message_, MSG_NOSIGNAL) == static_cast<ssize_t>(data_.iov_len);
  }
  std::optional<int> receive(int socket) {
    const ssize_t size = recvmsg(socket, &message_, MSG_CMSG_CLOEXEC);
    const cmsghdr* const rights = CMSG_FIRSTHDR(&message_);
    if (size != static_cast<ssize_t>(data_.iov_len) || rights == nullptr ||
        rights->cmsg_type != SCM_RIGHTS) {
      return std::nullopt;
    }
    int file = -1;
    std::memcpy(&file, CMSG_DATA(rights), sizeof(file));
    return file;
  }

 private:
  iovec data_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr message_{};
};

// Within a second, which is long for a process of the same machine.
bool has_answer(int socket) {
  pollfd at{socket, POLLIN, 0};
  return poll(&at, 1, 1000) == 1;
}

// Of each of the others once. Others' sockets close when the memory is theirs.
void give_memory(const SharedRanks& ranks, const Launched& launched, const Stopwatch& clock,
                 std::chrono::milliseconds patience) {
  const Descriptor door = make_socket(SOCK_NONBLOCK);
  const auto [address, length] = address_of(launched);
  if (bind(door.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(door.number(), launched.size) != 0) {
    fail(ErrorKind::kDevice, "ranks cannot meet: another process is rank 0 of the job {} ({})",
         launched.job, std::strerror(errno));
  }
  std::vector<bool> has_come(launched.size);
  bool has_said = false;
  for (int come = 1; come < launched.size;) {
    const double left = static_cast<double>(patience.count()) - clock.milliseconds();
    if (clock.milliseconds() > kQuiet && !std::exchange(has_said, true)) {
      log_warning(
          Message::format("rank 0 waits for others, of {} ranks {} are here", launched.size, come));
    }
    pollfd at{door.number(), POLLIN, 0};
    if (left > 0 && poll(&at, 1, static_cast<int>(std::min(left, kQuiet))) == 0) continue;
    if (left <= 0) {
      fail(ErrorKind::kDevice, "{} of {} ranks came within {} s", come, launched.size,
           patience.count() / 1000);
    }
    const Descriptor other(accept4(door.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (other.number() < 0 || !is_of_this_user(other.number())) continue;
    Hello hello{};
    if (!has_answer(other.number()) ||
        recv(other.number(), &hello, sizeof(hello), 0) != sizeof(hello)) {
      continue;
    }
    if (hello.size != launched.size || hello.rank < 1 || hello.rank >= launched.size ||
        has_come[hello.rank]) {
      fail(ErrorKind::kDevice, "a process of the job {} is rank {} of {}, which cannot be",
           launched.job, hello.rank, hello.size);
    }
    if (!Passing(hello).send(other.number(), ranks.memory_file())) continue;
    has_come[hello.rank] = true;
    ++come;
  }
}

// The file of the memory; nullopt: nobody gave it.
std::optional<int> ask_for_memory(const Launched& launched) {
  const Descriptor socket = make_socket();
  const auto [address, length] = address_of(launched);
  if (connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !is_of_this_user(socket.number())) {
    return std::nullopt;
  }
  Hello hello{launched.rank, launched.size};
  if (send(socket.number(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return std::nullopt;
  }
  if (!has_answer(socket.number())) return std::nullopt;
  return Passing(hello).receive(socket.number());
}

int take_memory(const Launched& launched, const Stopwatch& clock,
                std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kNap{20};
  bool has_said = false;
  while (clock.milliseconds() < static_cast<double>(patience.count())) {
    if (const auto file = ask_for_memory(launched)) return *file;
    if (clock.milliseconds() > kQuiet && !std::exchange(has_said, true)) {
      log_warning(Message::format("rank {} waits for rank 0", launched.rank));
    }
    std::this_thread::sleep_for(kNap);
  }
  fail(ErrorKind::kDevice, "rank {} found no rank 0 within {} s", launched.rank,
       patience.count() / 1000);
}

}  // namespace

LaunchedRank launched_rank() {
  const Launched launched = launched_as();
  return {launched.rank, launched.size, launched.address.empty()};
}

std::shared_ptr<Communicator> launched_ranks(std::chrono::milliseconds patience) {
  const Launched launched = launched_as();
  if (!launched.address.empty()) {
    const NetworkPlace place{launched.rank, launched.size, launched.address, launched.port,
                             launched.job};
    std::shared_ptr<Communicator> own = network_ranks(place, patience);
    own->wait_for_all();
    return own;
  }
  struct Joined {
    std::unique_ptr<SharedRanks> ranks;
    std::unique_ptr<Communicator> own;
  };
  const auto joined = std::make_shared<Joined>();
  const Stopwatch clock;
  if (launched.rank == 0) {
    joined->ranks = std::make_unique<SharedRanks>(launched.size);
    joined->own = joined->ranks->join(0);
    give_memory(*joined->ranks, launched, clock, patience);
  } else {
    joined->ranks =
        std::make_unique<SharedRanks>(launched.size, take_memory(launched, clock, patience));
    joined->own = joined->ranks->join(launched.rank);
  }
  joined->own->wait_for_all();
  return {joined, joined->own.get()};
}

}  // namespace quantspec
