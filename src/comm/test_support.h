// For tests: ranks that are processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
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

// A child of this process for every rank but the first one. It exits with 0; with 3 where f throws,
// 4 where an assertion failed.
class RankProcesses {
 public:
  RankProcesses(SharedRanks& ranks, int size, const std::function<void(Communicator&)>& f) {
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
  [[noreturn]] static void run(SharedRanks& ranks, int rank,
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
