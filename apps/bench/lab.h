// What the benchmarks share: backends, memory beyond the caches, and how a result is told.
//
// Memory is made when a benchmark first asks for it and kept to the end, so that benchmarks may run
// in any order, again and again; all of it together is about 10 GiB. It comes from
// Backend::allocate, as the engine's does.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/machine.h"
#include "backend/backend.h"
#include "backend/params/kv.h"
#include "base/clock.h"
#include "base/thread_pool.h"

namespace quantspec {

// Each thing that is walked through is larger than this, several times the largest cache there is.
inline constexpr std::size_t kBeyondCaches = std::size_t{1} << 30;

std::vector<float> normal_values(std::size_t count);

// Pages of several sequences, 32 layers each. Every unit holds the same values, at its own place.
class PageStore {
 public:
  static constexpr int kLayers = 32;

  // `bytes`: of upper planes, at least.
  PageStore(Backend& backend, const KvShape& shape, int pages_per_sequence, std::size_t bytes,
            FullKv values);

  struct Place {
    std::span<const PagePlanes> pages;
    int layer;
  };
  // The next layer of a sequence, then the next sequence, round and round.
  Place next();

 private:
  void fill(Backend& backend, const KvShape& shape, FullKv values);

  int pages_per_sequence_;
  Buffer upper_, lower_;
  std::vector<PagePlanes> pages_;  // [sequences, pages_per_sequence]
  std::size_t at_ = 0;
};

// The lower decile of `seconds`. Other programs only add to the time of an iteration, so one of the
// fastest tells what the kernel takes; not the very fastest, which may have met some of its data in
// a cache.
double typical(std::vector<double> seconds);

// Runs a benchmark's iterations and returns the typical seconds of one.
template <typename F>
double time_each(benchmark::State& state, const F& iteration) {
  std::vector<double> seconds;
  seconds.reserve(state.max_iterations);
  for (auto _ : state) {
    const Stopwatch watch;
    iteration();
    seconds.push_back(watch.seconds());
  }
  return typical(std::move(seconds));
}

// What one iteration has to do at the least: bytes it must read (or write), and arithmetic.
struct Work {
  double bytes = 0;
  double flops = 0;
  double elements = 0;  // of K and V, or of weights
};

class Lab {
 public:
  explicit Lab(int num_threads);

  int threads() const { return pool_.num_threads(); }
  Backend& backend() { return *backend_; }
  Backend& backend_of_one() { return *backend_of_one_; }
  ThreadPool& pool() { return pool_; }
  ThreadPool& pool_of_one() { return pool_of_one_; }

  // Bytes per second that all threads, or one, read from memory: the most that was seen so far.
  // Cycles per second of a core.
  double bandwidth(int threads) const { return threads == 1 ? bandwidth_of_one_ : bandwidth_; }
  double clock() const { return clock_; }
  // Reads the next kReadBytes of the values.
  void read_next(ThreadPool& pool) { read_all(pool, next_values(kReadBytes), kReadBytes); }
  void saw_bandwidth(int threads, double bytes_per_second);
  static constexpr std::size_t kReadBytes = std::size_t{16} << 20;

  // Random 2-byte values whose bits are usual numbers as bf16 and as fp16 alike.
  // The next so many bytes of them, round and round: at a multiple of 64.
  std::byte* next_values(std::size_t bytes);
  FullKv next_full_kv(const KvShape& shape, int capacity);

  PageStore& pages(const KvShape& shape, int pages_per_sequence, std::size_t bytes);

  // Tells what an iteration of so many seconds on so many threads comes to.
  void report(benchmark::State& state, double seconds, const Work& work, int threads) const;

 private:
  void measure_bandwidth(ThreadPool& pool);

  std::unique_ptr<Backend> backend_, backend_of_one_;
  ThreadPool pool_, pool_of_one_;
  Buffer values_;
  std::size_t next_value_ = 0;
  double bandwidth_ = 0, bandwidth_of_one_ = 0, clock_ = 0;
  std::map<std::string, std::unique_ptr<PageStore>> pages_;
};

// Register with Google Benchmark. Names are paths: group/where it lies/what is read/shape/rows.
void register_machine(Lab& lab);
void register_attention(Lab& lab);
void register_linear(Lab& lab);
void register_prefill(Lab& lab);
void register_sampling(Lab& lab);

}  // namespace quantspec
