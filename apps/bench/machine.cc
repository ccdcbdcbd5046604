#include "apps/bench/machine.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace quantspec {

namespace {

constexpr std::size_t kBand = std::size_t{1} << 20;  // that a thread takes at a time

typedef std::uint64_t Line __attribute__((vector_size(64), may_alias));

// Four streams, each some way ahead of itself: what it takes to keep as many reads in flight as a
// core can have. NOTE: without asking ahead one core of a Xeon of 2023 reads a tenth less.
[[gnu::always_inline]] inline std::uint64_t or_of(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kAhead = 4096 / sizeof(Line);
  const auto* lines = reinterpret_cast<const Line*>(data);
  const std::size_t stride = bytes / sizeof(Line) / 4;
  Line a{}, b{}, c{}, d{};
  for (std::size_t i = 0; i < stride; ++i) {
    for (std::size_t stream = 0; stream < 4; ++stream) {
      __builtin_prefetch(&lines[i + stream * stride + kAhead]);
    }
    a |= lines[i];
    b |= lines[i + stride];
    c |= lines[i + 2 * stride];
    d |= lines[i + 3 * stride];
  }
  a |= b | c | d;
  std::uint64_t result = 0;
  for (int i = 0; i < 8; ++i) result |= a[i];
  return result;
}

std::uint64_t or_plain(const std::byte* data, std::size_t bytes) { return or_of(data, bytes); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t or_avx2(const std::byte* data, std::size_t bytes) {
  return or_of(data, bytes);
}
__attribute__((target("avx512f"))) std::uint64_t or_avx512(const std::byte* data,
                                                           std::size_t bytes) {
  return or_of(data, bytes);
}
#endif

// The widest loads that the machine has: narrow ones read memory more slowly.
std::uint64_t or_words(const std::byte* data, std::size_t bytes) {
#if defined(__x86_64__)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f");
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx512) return or_avx512(data, bytes);
  if (has_avx2) return or_avx2(data, bytes);
#endif
  return or_plain(data, bytes);
}

std::atomic<std::uint64_t> g_sink;  // so that reads have a use

}  // namespace

void read_all(ThreadPool& pool, const std::byte* data, std::size_t bytes) {
  pool.parallel_for(static_cast<std::int64_t>((bytes + kBand - 1) / kBand),
                    [&](std::int64_t band, int) {
                      const std::size_t first = band * kBand;
                      g_sink |= or_words(data + first, std::min(kBand, bytes - first));
                    });
}

double clock_rate() {
  constexpr int kAdditions = 16, kRounds = 1 << 14, kPasses = 1000;
  double least = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::uint64_t x = pass, y = 3;
    asm volatile("" : "+r"(y));  // NOTE: processors of 2021 add a constant in no time at all
    Stopwatch watch;
    for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
      for (int i = 0; i < kAdditions; ++i) {
        x += y;
        asm volatile("" : "+r"(x));
      }
    }
    least = std::min(least, watch.seconds());
  }
  return double{kAdditions} * kRounds / least;
}

}  // namespace quantspec
