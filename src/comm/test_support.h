// For tests: ranks that are processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "comm/comm.h"

namespace quantspec {

// Of each child, once it has ended: its exit status, or 128 and the signal.
inline std::vector<int> wait_for(const std::vector<pid_t>& children) {
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return ends;
}

// A port that nobody listens at.
inline int free_port() {
  const int door = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(door, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(door, reinterpret_cast<sockaddr*>(&address), &size);
  close(door);
  return ntohs(address.sin_port);
}

enum class Way { kMemory, kNetwork };

// Ranks that meet one way or the other; as SharedRanks.
class TestRanks {
 public:
  TestRanks(Way way, int size, std::chrono::milliseconds patience = SharedRanks::kPatience)
      : size_(size), port_(free_port()), patience_(patience) {
    if (way == Way::kMemory) shared_ = std::make_unique<SharedRanks>(size, patience);
  }
  std::unique_ptr<Communicator> join(int rank) {
    if (shared_ != nullptr) return shared_->join(rank);
    const NetworkPlace place{rank, size_, "127.0.0.1", port_, "a test"};
    return network_ranks(place, std::chrono::seconds(20), patience_);
  }

 private:
  int size_, port_;
  std::chrono::milliseconds patience_;
  std::unique_ptr<SharedRanks> shared_;
};

// A child of this process for every rank but the first one. It exits with 0; with 3 where f throws,
// 4 where an assertion failed.
class RankProcesses {
 public:
  template <typename Ranks>
  RankProcesses(Ranks& ranks, int size, const std::function<void(Communicator&)>& f) {
    for (int rank = 1; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) run(ranks, rank, f);
      children_.push_back(child);
    }
  }
  ~RankProcesses() {
    for (const pid_t child : children_) kill(child, SIGKILL);
    wait();
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  std::vector<int> wait() {
    const std::vector<int> ends = wait_for(children_);
    children_.clear();
    return ends;
  }
  pid_t of(int rank) const { return children_[rank - 1]; }

 private:
  template <typename Ranks>
  [[noreturn]] static void run(Ranks& ranks, int rank,
                               const std::function<void(Communicator&)>& f) {
    int code = 0;
    try {
      as_rank(ranks, rank, f);
    } catch (const std::exception& error) {
      fprintf(stderr, "rank %d: %s\n", rank, error.what());
      code = 3;
    }
    _exit(::testing::Test::HasFailure() ? 4 : code);
  }

  std::vector<pid_t> children_;
};

}  // namespace quantspec
