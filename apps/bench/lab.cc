#include "apps/bench/lab.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "base/system_memory.h"

namespace quantspec {

namespace {

Buffer allocate(Backend& backend, std::size_t bytes) {
  if (bytes > available_memory_bytes()) {
    fail(ErrorKind::kOutOfMemory,
         "needs {} MB more memory than the {} MB that are free; fewer benchmarks "
         "(--benchmark_filter) need less",
         bytes / 1000000, available_memory_bytes() / 1000000);
  }
  return backend.allocate(bytes);
}

// bf16 values of N(0, 1/4096), over and over: their bits are fp16 numbers between 0.1 and 1.5.
Buffer make_values(Backend& backend, std::size_t bytes) {
  constexpr std::size_t kCount = std::size_t{1} << 20;
  Buffer buffer = allocate(backend, bytes);
  const std::vector<float> normal = normal_values(kCount);
  std::vector<std::uint16_t> bits(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    bits[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal[i] / 64) >> 16);
  }
  for (std::size_t first = 0; first < bytes; first += 2 * kCount) {
    std::memcpy(buffer.data() + first, bits.data(), std::min(2 * kCount, bytes - first));
  }
  return buffer;
}

}  // namespace

std::vector<float> normal_values(std::size_t count) {
  const CounterRng rng(1);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto position = static_cast<std::int64_t>(i);
    const float radius = std::sqrt(-2 * std::log(rng.uniform(position, RandomStream::kSample)));
    x[i] = radius * std::cos(6.2831853f * rng.uniform(position, RandomStream::kSample, 1));
  }
  return x;
}

double typical(std::vector<double> seconds) {
  const auto decile = seconds.begin() + std::ssize(seconds) / 10;
  std::nth_element(seconds.begin(), decile, seconds.end());
  return *decile;
}

// --- pages ---------------------------------------------------------------------------------------

PageStore::PageStore(Backend& backend, const KvShape& shape, int pages_per_sequence,
                     std::size_t bytes, FullKv values)
    : pages_per_sequence_(pages_per_sequence) {
  const std::size_t upper = shape.units() * shape.upper_unit_bytes();
  const std::size_t lower = shape.units() * shape.lower_unit_bytes();
  const std::size_t sequences = bytes / (pages_per_sequence * upper) + 1;
  pages_.resize(sequences * pages_per_sequence);
  upper_ = allocate(backend, pages_.size() * upper);
  lower_ = allocate(backend, pages_.size() * lower);
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    pages_[i] = {upper_.data() + i * upper, lower_.data() + i * lower};
  }
  fill(backend, shape, values);
}

void PageStore::fill(Backend& backend, const KvShape& shape, FullKv values) {
  backend.quantize_pages(shape, 0, {&values, 1}, 0, {pages_.data(), 1});
  const std::size_t upper = shape.upper_offset(1, 0), lower = shape.lower_offset(1, 0);
  for (const PagePlanes& page : pages_) {
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      if (page.upper == pages_[0].upper && layer == 0) continue;
      std::memcpy(page.upper + layer * upper, pages_[0].upper, upper);
      std::memcpy(page.lower + layer * lower, pages_[0].lower, lower);
    }
  }
}

PageStore::Place PageStore::next() {
  const std::size_t sequences = pages_.size() / pages_per_sequence_;
  const std::size_t sequence = at_ / kLayers % sequences;
  const int layer = static_cast<int>(at_++ % kLayers);
  return {{&pages_[sequence * pages_per_sequence_], static_cast<std::size_t>(pages_per_sequence_)},
          layer};
}

// --- the lab -------------------------------------------------------------------------------------

Lab::Lab(int num_threads)
    : backend_(make_backend({"cpu", num_threads})),
      backend_of_one_(make_backend({"cpu", 1})),
      pool_(num_threads > 0 ? num_threads : num_physical_cores()),
      pool_of_one_(1),
      values_(make_values(*backend_, kBeyondCaches + kBeyondCaches / 8)) {
  measure_bandwidth(pool_of_one_);
  measure_bandwidth(pool_);
  clock_ = clock_rate();
}

std::byte* Lab::next_values(std::size_t bytes) {
  if (next_value_ + bytes > values_.size()) next_value_ = 0;
  std::byte* found = values_.data() + next_value_;
  next_value_ += (bytes + 63) / 64 * 64;
  return found;
}

FullKv Lab::next_full_kv(const KvShape& shape, int capacity) {
  return {next_values(backend_->full_kv_bytes(shape, capacity)), capacity};
}

PageStore& Lab::pages(const KvShape& shape, int pages_per_sequence, std::size_t bytes) {
  auto& store = pages_[fmt::format("{} {} {} {}", shape.num_kv_heads, shape.head_dim,
                                   pages_per_sequence, bytes)];
  if (store == nullptr) {
    store = std::make_unique<PageStore>(*backend_, shape, pages_per_sequence, bytes,
                                        next_full_kv(shape, shape.page_size));
  }
  return *store;
}

void Lab::saw_bandwidth(int threads, double bytes_per_second) {
  double& most = threads == 1 ? bandwidth_of_one_ : bandwidth_;
  most = std::max(most, bytes_per_second);
}

void Lab::measure_bandwidth(ThreadPool& pool) {
  std::vector<double> seconds;
  for (const Stopwatch all; all.seconds() < 0.5;) {
    const Stopwatch watch;
    read_next(pool);
    seconds.push_back(watch.seconds());
  }
  saw_bandwidth(pool.num_threads(), kReadBytes / typical(std::move(seconds)));
}

void Lab::report(benchmark::State& state, double seconds, const Work& work, int threads) const {
  auto& counters = state.counters;
  if (work.bytes > 0) {
    counters["bytes_per_second"] = work.bytes / seconds;
    counters["of_bandwidth"] = work.bytes / seconds / bandwidth(threads);
  }
  if (work.flops > 0) counters["flops"] = work.flops / seconds;
  if (work.flops > 0 && work.bytes > 0) counters["flop_per_byte"] = work.flops / work.bytes;
  if (work.elements > 0) {
    counters["el_per_clk_core"] = work.elements / (seconds * clock_ * threads);
  }
  counters["typical_us"] = 1e6 * seconds;
}

}  // namespace quantspec
