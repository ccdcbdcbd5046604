#include "api/front_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace quantspec::api {

namespace {

void run_logged(const std::function<void()>& work) noexcept {
  try {
    work();
  } catch (...) {
    log_caught("a request");
  }
}

}  // namespace

FrontPool::FrontPool(int threads, std::size_t most_waiting, std::size_t most_bytes)
    : most_waiting_(most_waiting), most_bytes_(most_bytes) {
  for (int i = 0; i < std::max(1, threads); ++i) threads_.emplace_back([this] { work(); });
}

FrontPool::~FrontPool() { stop(); }

void FrontPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool FrontPool::post(std::function<void()> job, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || jobs_.size() >= most_waiting_) return false;
    if (bytes_ > 0 && bytes > most_bytes_ - std::min(bytes_, most_bytes_)) return false;
    jobs_.push_back({std::move(job), bytes});
    bytes_ += bytes;
  }
  changed_.notify_one();
  return true;
}

bool FrontPool::post_first(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    jobs_.push_front({std::move(job)});
  }
  changed_.notify_one();
  return true;
}

std::size_t FrontPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void FrontPool::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      bytes_ -= job.bytes;
    }
    run_logged(job.work);
  }
}

Ticker::Ticker(std::function<void()> tick)
    : thread_([this, tick = std::move(tick)] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_; })) {
          lock.unlock();
          run_logged(tick);
          lock.lock();
        }
      }) {}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace quantspec::api
