// Measures what limits this machine, by what limits this engine on it: a stream of reads from
// memory by all threads, and the inner loop of an fp32 matrix product (where a CPU has products of
// bf16, prompts are read faster).
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "quant/encode_row.h"
#include "roofline/fields.h"
#include "roofline/probe_kernels.h"
#include "roofline/roofline.h"

namespace quantspec {

namespace {

constexpr double kSecondsEach = 0.25;                // of measuring, beyond the first two runs
constexpr std::size_t kBand = std::size_t{1} << 18;  // that a thread reads at a time
constexpr std::size_t kLeastBytes = std::size_t{256}
                                    << 20;  // where the system does not tell its caches

struct Cache {
  int level = 0;
  std::size_t bytes = 0;
};

// What /sys says of the index-th cache of a cpu, and the cpus that share it. Level 0: no such
// cache.
std::pair<Cache, std::string> read_cache(int cpu, int index) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" +
                             std::to_string(index) + "/";
  Cache cache;
  std::size_t kib = 0;
  std::string shared_by;
  std::ifstream(folder + "level") >> cache.level;
  std::ifstream(folder + "size") >> kib;  // "266240K"
  std::ifstream(folder + "shared_cpu_list") >> shared_by;
  cache.bytes = kib * 1024;
  return {cache, shared_by};
}

// All last-level caches of the cpus that this process may run on, together.
std::size_t last_level_cache_bytes() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  std::map<std::string, Cache> last;  // by the cpus that share it
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::pair<Cache, std::string> top;
    for (int index = 0;; ++index) {
      const auto found = read_cache(cpu, index);
      if (found.first.level == 0) break;
      if (found.first.level >= top.first.level) top = found;
    }
    last.insert({top.second, top.first});
  }
  std::size_t bytes = 0;
  for (const auto& [cpus, cache] : last) bytes += cache.bytes;
  return bytes;
}

// Calls `run` twice, then until its time is up; the least seconds that a run took.
template <typename F>
double least_seconds(const F& run) {
  Stopwatch all;
  double least = 0;
  for (int runs = 0; runs < 2 || all.seconds() < kSecondsEach; ++runs) {
    Stopwatch watch;
    run();
    least = runs == 0 ? watch.seconds() : std::min(least, watch.seconds());
  }
  return least;
}

// So much is read from memory, whatever is read: a larger buffer would change nothing.
std::size_t beyond_caches() { return std::max(kLeastBytes, 2 * last_level_cache_bytes()); }

constexpr std::int64_t kWords = kBand / sizeof(std::uint64_t);

// REQUIRES: a buffer of whole bands.
double measure_bandwidth(ThreadPool& pool, const roofline::Kernels& kernels, const Buffer& buffer) {
  const auto bands = static_cast<std::int64_t>(buffer.size() / kBand);
  std::atomic<std::uint64_t> sum = 0;
  const double seconds = least_seconds([&] {
    pool.parallel_for(bands, [&](std::int64_t band, int) {
      sum += kernels.sum(buffer.as<std::uint64_t>() + band * kWords, kWords);
    });
  });
  check(sum == 0, "a sum of zeros");
  return static_cast<double>(buffer.size()) / seconds;
}

// NOTE: the buffer is filled first, by the threads that will read it: memory that was never touched
// is no memory, and where there are several nodes, each thread reads its own, as it does of weight
// planes.
void measure_bandwidths(ThreadPool& pool, const roofline::Kernels& kernels, std::size_t bytes,
                        Machine& machine) {
  const std::size_t rounded = (bytes + kBand - 1) / kBand * kBand;
  const std::size_t available = available_memory_bytes();
  if (rounded > available) {
    fail(ErrorKind::kOutOfMemory,
         "{} this: needs {} MB to measure reading them, and {} MB are free; a preset needs none",
         field::kMachine, rounded / 1000000, available / 1000000);
  }
  Buffer buffer(rounded);
  pool.parallel_for(static_cast<std::int64_t>(rounded / kBand), [&](std::int64_t band, int) {
    std::memset(buffer.data() + band * kBand, 0, kBand);
  });
  machine.bandwidth = measure_bandwidth(pool, kernels, buffer);
  if (pool.num_threads() == 1) return;
  ThreadPool alone(1);
  machine.one_thread_bandwidth = measure_bandwidth(alone, kernels, buffer);
}

double measure_flops(ThreadPool& pool, const roofline::Kernels& kernels) {
  constexpr int kCalls = 1000;
  const std::int64_t shares = 16LL * pool.num_threads();
  const double seconds = least_seconds([&] {
    pool.parallel_for(shares, [&](std::int64_t, int) {
      roofline::Tile tile;
      for (int i = 0; i < kCalls; ++i) kernels.multiply(tile);
      check(tile.is_done(kCalls), "a matrix product");
    });
  });
  return static_cast<double>(shares) * kCalls * kernels.flops / seconds;
}

}  // namespace

Machine measure_this_machine(int num_threads, std::size_t working_set) {
  ThreadPool pool(num_threads > 0 ? num_threads : num_physical_cores());
  const roofline::Kernels kernels = roofline::choose_kernels(cpu_instruction_sets().back());
  Machine machine{"this"};
  machine.memory = static_cast<double>(available_memory_bytes());
  machine.draft_group = make_backend({.name = "cpu", .num_threads = 1})->encoder().format.group;
  machine.flops = measure_flops(pool, kernels);
  const std::size_t most = beyond_caches();
  measure_bandwidths(pool, kernels, working_set > 0 ? std::min(working_set, most) : most, machine);
  return machine;
}

}  // namespace quantspec
