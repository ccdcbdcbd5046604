#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/pause_cpu.h"

namespace quantspec {

namespace {

// 50 to 200 microseconds of pauses, by the processor: longer than the gaps inside a decode step,
// short enough that an idle engine soon sleeps and a crowded machine soon gets its core back.
constexpr int kSpins = 4000;

// NOTE: a refusal changes nothing: the work is right wherever it runs.
void stay_on(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

std::vector<int> checked_nodes(int num_threads, const Topology& topology) {
  check(num_threads >= 1, "a thread pool needs at least one thread");
  return topology.nodes_of_threads(num_threads);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, const Topology& topology)
    : ThreadPool(topology, checked_nodes(num_threads, topology)) {}

ThreadPool::ThreadPool(const Topology& topology, const std::vector<int>& node_of_thread)
    : hand_out_(node_of_thread),
      num_nodes_(static_cast<int>(std::set(node_of_thread.begin(), node_of_thread.end()).size())) {
  const int num_threads = static_cast<int>(node_of_thread.size());
  may_spin_ = num_threads <= static_cast<int>(std::thread::hardware_concurrency());
  const auto processors_of = [&](int thread) {  // none: any
    return num_nodes_ == 1 ? std::vector<int>() : topology.nodes[node_of_thread[thread]];
  };
  workers_.reserve(num_threads - 1);
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.emplace_back([this, thread, processors = processors_of(thread)] {
        if (!processors.empty()) stay_on(processors);
        work(thread);
      });
    }
  } catch (const std::system_error& error) {
    const int started = this->num_threads();
    stop();
    fail(ErrorKind::kInvalidRequest, "could start only {} of {} threads: {}", started, num_threads,
         error.what());
  } catch (...) {
    stop();
    throw;
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
  std::set<std::pair<std::string, std::string>> cores;
  const std::vector<int> allowed = allowed_processors();
  if (allowed.empty()) return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const int cpu : allowed) {
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string package, core;
    std::ifstream(topology + "physical_package_id") >> package;
    std::ifstream(topology + "core_id") >> core;
    if (!core.empty()) cores.emplace(package, core);
  }
  return static_cast<int>(cores.empty() ? allowed.size() : cores.size());
}

}  // namespace quantspec
