// The threads that read requests: a few, behind a bounded queue. Private to api/.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quantspec::api {

class FrontPool {
 public:
  // At most so many jobs wait, and so many bytes of them but for a single one.
  FrontPool(int threads, std::size_t most_waiting, std::size_t most_bytes);
  ~FrontPool();  // does what waits, and ends
  FrontPool(const FrontPool&) = delete;
  FrontPool& operator=(const FrontPool&) = delete;

  // False: the queue is full. `bytes`: what the job holds while it waits. What a job throws is
  // logged.
  bool post(std::function<void()> job, std::size_t bytes = 0);
  // Before all others, and however many they are: for what ends something. False: after stop().
  bool post_first(std::function<void()> job);
  std::size_t waiting() const;
  void stop();  // as the end does; nothing is posted after it

 private:
  struct Job {
    std::function<void()> work;
    std::size_t bytes = 0;
  };
  void work();

  const std::size_t most_waiting_;
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t bytes_ = 0;  // of jobs_
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Calls something about every second, until its end; what it throws is logged.
class Ticker {
 public:
  explicit Ticker(std::function<void()> tick);
  ~Ticker();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quantspec::api
