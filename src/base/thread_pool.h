// A pool for thousands of short parallel regions a second. Workers spin for a short while between
// regions and sleep when none comes, so that a decode step's thirty regions cost well under a
// microsecond each and an idle engine costs nothing.
//
// One region runs at a time: `run` may be called from one thread at a time, and not from inside a
// region. An exception thrown in a region is rethrown by `run` after all threads have left it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace quantspec {

class ThreadPool {
 public:
  // num_threads counts the caller, which works too. REQUIRES: num_threads >= 1.
  // Throws kInvalidRequest when the system has not as many.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(thread) once on every thread, thread in [0, num_threads).
  template <typename F>
  void run(const F& f) {
    run_erased([](const void* context, int thread) { (*static_cast<const F*>(context))(thread); },
               &f);
  }

  // Calls f(index, thread) for every index in [0, count), handed out one at a time.
  template <typename F>
  void parallel_for(std::int64_t count, const F& f) {
    if (count == 1 || workers_.empty()) {
      for (std::int64_t i = 0; i < count; ++i) f(i, 0);
      return;
    }
    std::atomic<std::int64_t> next{0};
    run([&](int thread) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        f(i, thread);
      }
    });
  }

 private:
  using Job = void (*)(const void* context, int thread);
  void run_erased(Job job, const void* context);
  void work(int thread);
  void call(int thread);
  void stop();

  // NOTE: the caller writes the first line and the workers the second; apart they do not bounce.
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  Job job_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<int> running_{0};
  std::atomic<int> sleeping_{0};
  std::mutex exception_mutex_;
  std::exception_ptr exception_;
  bool may_spin_ = true;
  std::vector<std::thread> workers_;
};

// Physical cores that this process may run on: the default number of threads.
int num_physical_cores();

}  // namespace quantspec
