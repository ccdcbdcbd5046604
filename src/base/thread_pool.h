// A pool for thousands of short parallel regions a second. Workers spin for a short while between
// regions and sleep when none comes, so that a decode step's thirty regions cost well under a
// microsecond each and an idle engine costs nothing.
//
// On a machine with several memory nodes (topology.h) workers stay on the processors of their node,
// and a region's indices are handed out as hand_out.h says. NOTE: the caller, thread 0, counts to
// the first node but is not bound: it belongs to the program. Where every processor has a thread,
// the one that the workers leave free is on that node.
//
// NOTE: a region waits for the workers that came to it, never for one that did not: the caller can
// do all the work alone. On a crowded machine, where a worker may not get a core for milliseconds,
// a barrier over all threads made decoding 30 times slower than one thread.
//
// One region runs at a time: regions may be opened from one thread at a time, and not from inside
// one. An exception thrown in a region is rethrown by the caller after all threads have left it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/hand_out.h"
#include "base/topology.h"

namespace quantspec {

class ThreadPool {
 public:
  // num_threads counts the caller, which works too. REQUIRES: num_threads >= 1.
  // Throws kInvalidRequest when the system has not as many.
  explicit ThreadPool(int num_threads, const Topology& topology = Topology::of_this_process());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Memory nodes that have threads of this pool.
  int num_nodes() const { return num_nodes_; }

  // Calls f(thread) on the caller (thread 0) and on every worker that is free to come. f takes its
  // work from what they share, and returns when there is no more of it.
  template <typename F>
  void share(const F& f) {
    open_region([](const void* context, int thread) { (*static_cast<const F*>(context))(thread); },
                &f);
  }

  // Calls f(hand_out, thread) in the same way, with the indices of `ranges` to be taken.
  template <typename F>
  void share_indices(std::span<const IndexRange> ranges, const F& f) {
    hand_out_.start(ranges);
    share([&](int thread) { f(hand_out_, thread); });
  }

  // Calls f(index, thread) for every index of `ranges`, handed out one at a time.
  template <typename F>
  void parallel_for(std::span<const IndexRange> ranges, const F& f) {
    std::int64_t count = 0;
    for (const IndexRange& range : ranges) count += range.count * range.repeats;
    if (count == 1 || workers_.empty()) {
      for (std::int64_t i = 0; i < count; ++i) f(i, 0);
      return;
    }
    share_indices(ranges, [&](HandOut& hand_out, int thread) {
      for (std::int64_t i; (i = hand_out.take(thread)) < count;) f(i, thread);
    });
  }
  template <typename F>
  void parallel_for(std::int64_t count, const F& f) {
    const IndexRange range{count};
    parallel_for({&range, 1}, f);
  }

 private:
  using Job = void (*)(const void* context, int thread);
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kInside = kClosed - 1;
  ThreadPool(const Topology& topology, const std::vector<int>& node_of_thread);
  void open_region(Job job, const void* context);
  void close_region();
  void work(int thread);
  bool enter(std::uint32_t generation);
  void call(int thread);
  void stop();

  // NOTE: what the caller writes and what the workers write lie on lines of their own.
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // regions opened; workers sleep on it
  Job job_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> stopping_ = false;
  // The door of the region: its generation in the upper half; whether it is closed, and how many
  // workers are inside, in the lower.
  alignas(64) std::atomic<std::uint64_t> door_{kClosed};
  std::atomic<int> sleeping_{0};
  std::mutex exception_mutex_;
  std::exception_ptr exception_;
  HandOut hand_out_;
  int num_nodes_;
  bool may_spin_ = true;
  std::vector<std::thread> workers_;
};

// Physical cores that this process may run on: the default number of threads.
int num_physical_cores();

}  // namespace quantspec
