#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

// 50 to 200 microseconds of pauses, by the processor: longer than the gaps inside a decode step,
// short enough that an idle engine soon sleeps and a crowded machine soon gets its core back.
constexpr int kSpins = 4000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  check(num_threads >= 1, "a thread pool needs at least one thread");
  may_spin_ = num_threads <= static_cast<int>(std::thread::hardware_concurrency());
  workers_.reserve(num_threads - 1);
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error& error) {
    const int started = this->num_threads();
    stop();
    fail(ErrorKind::kInvalidRequest, "could start only {} of {} threads: {}", started, num_threads,
         error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::open_region(Job job, const void* context) {
  job_ = job;
  context_ = context;
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  door_.store(std::uint64_t{generation} << 32);
  generation_.store(generation);  // sequentially consistent with sleeping_: no worker is missed
  if (sleeping_.load() > 0) generation_.notify_all();
  call(0);
  close_region();
  if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
}

void ThreadPool::close_region() {
  door_.fetch_or(kClosed);
  for (int spins = 0; (door_.load() & kInside) != 0; ++spins) {
    if (may_spin_ && spins < kSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

// Whether the region is still open; if so, it waits for this worker.
bool ThreadPool::enter(std::uint32_t generation) {
  std::uint64_t door = door_.load();
  while (door >> 32 == generation && (door & kClosed) == 0) {
    if (door_.compare_exchange_weak(door, door + 1)) return true;
  }
  return false;
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; may_spin_ && spins < kSpins && generation_.load() == seen; ++spins) {
      pause_cpu();
    }
    if (generation_.load() == seen) {
      sleeping_.fetch_add(1);
      generation_.wait(seen);
      sleeping_.fetch_sub(1);
      if (generation_.load() == seen) continue;
    }
    seen = generation_.load();
    if (stopping_) return;
    if (!enter(seen)) continue;
    call(thread);
    door_.fetch_sub(1);
  }
}

void ThreadPool::call(int thread) {
  try {
    job_(context_, thread);
  } catch (...) {
    const std::lock_guard lock(exception_mutex_);
    if (!exception_) exception_ = std::current_exception();
  }
}

int num_physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }
  std::set<std::pair<std::string, std::string>> cores;
  int logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    ++logical;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string package, core;
    std::ifstream(topology + "physical_package_id") >> package;
    std::ifstream(topology + "core_id") >> core;
    if (!core.empty()) cores.emplace(package, core);
  }
  return std::max(1, cores.empty() ? logical : static_cast<int>(cores.size()));
}

}  // namespace quantspec
