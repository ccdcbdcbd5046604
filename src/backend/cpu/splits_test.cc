#include "backend/cpu/splits.h"

#include <gtest/gtest.h>

#include <functional>
#include <queue>
#include <vector>

namespace quantspec::cpu {
namespace {

TEST(Splits, BordersAreWhereTheyAreCounted) {
  for (const int heads : {1, 2, 3, 4, 5, 8, 32, 200}) {
    for (const int grain : {1, 2, 64}) {
      const SplitBorders borders(heads, grain);
      EXPECT_EQ(borders.begin(0), 0);
      EXPECT_EQ(borders.splits(0), 0);
      for (int split = 0; split < 400; ++split) {
        const int size = (borders.begin(split + 1) - borders.begin(split)) / grain;
        ASSERT_TRUE(size == 1 || size == 2 || size == 4 || size == kMostGrains) << split;
        ASSERT_EQ(borders.splits(borders.begin(split) + 1), split + 1);
        ASSERT_EQ(borders.splits(borders.begin(split + 1)), split + 1);
        // Far from the start a split is long, but never longer than what a thread would have of all
        // that comes before it.
        ASSERT_LE((size - 1) * kOneGrainSplits / 2, borders.begin(split + 1) / grain * heads)
            << split;
        // No run of pages ends within one.
        const int run = kMostGrains * grain;
        ASSERT_EQ(borders.begin(split) / run, (borders.begin(split + 1) - 1) / run) << split;
      }
    }
  }
}

TEST(Splits, GrainsHaveTheirBytes) {
  for (const int page : {16, 48, 64, 128, 256}) {
    for (const int dim : {16, 64, 80, 128, 256}) {
      const KvShape shape{1, 1, dim, page};
      const std::size_t pages = page_grain(shape) * 4 * shape.plane_bytes();
      const std::size_t page_bytes = 4 * shape.plane_bytes();
      const std::size_t tokens = token_grain(shape);
      EXPECT_EQ(tokens % 16, 0u);
      EXPECT_GE(tokens * 4 * dim, kTokenGrainBytes * 9 / 10);
      EXPECT_LE(tokens * 4 * dim, kTokenGrainBytes + 64 * dim);
      EXPECT_TRUE(pages > kPageGrainBytes / 2 && (pages <= kPageGrainBytes || pages == page_bytes));
    }
  }
}

// One kv head's splits in the order in which they are handed out, in bytes.
struct Reads {
  int dim;
  int page;
  int heads;
  int context;
  KvRead read;
};

struct Units {
  std::vector<double> bytes;
  double total = 0;
  double grain = 0;  // the most bytes of a grain
};

Units units_of(const Reads& r) {
  const KvShape shape{1, r.heads, r.dim, r.page};
  const double token_bytes = 4.0 * r.dim;
  const double page_bytes = static_cast<double>(shape.upper_unit_bytes()) +
                            (r.read == KvRead::kBoth ? shape.lower_unit_bytes() : 0);
  const int pages =
      r.read != KvRead::kFull ? first_full_position(r.context - 1, r.page) / r.page : 0;
  Units units;
  units.grain = token_grain(shape) * token_bytes;
  const auto add = [&](int count, int grain, double bytes_each) {
    const SplitBorders borders(r.heads, grain);
    for (int split = borders.splits(count); split-- > 0;) {
      const int end = std::min(borders.begin(split + 1), count);
      for (int head = 0; head < r.heads; ++head) {
        units.bytes.push_back((end - borders.begin(split)) * bytes_each);
        units.total += units.bytes.back();
      }
    }
  };
  add(r.context - pages * r.page, token_grain(shape), token_bytes);
  if (pages > 0) {
    add(pages, page_grain(shape), page_bytes);
    units.grain = std::max(units.grain, page_grain(shape) * page_bytes);
  }
  return units;
}

// The bytes of the busiest of equally fast threads that take units as DecodeAttention does.
double busiest(const Units& units, int num_threads) {
  struct Thread {
    double done;  // bytes, when its unit is done
    std::size_t following;
    bool operator>(const Thread& other) const { return done > other.done; }
  };
  const std::size_t count = units.bytes.size();
  std::size_t next = 0;
  double most = 0;
  std::priority_queue<Thread, std::vector<Thread>, std::greater<>> threads;
  for (int i = 0; i < num_threads; ++i) threads.push({0, count});
  while (!threads.empty()) {
    Thread thread = threads.top();
    threads.pop();
    most = std::max(most, thread.done);
    const std::size_t unit = thread.following < count ? thread.following : next++;
    if (unit >= count) continue;
    thread.following = count;
    if (looks_ahead(static_cast<std::int64_t>(unit), static_cast<std::int64_t>(count),
                    num_threads)) {
      thread.following = next++;
    }
    thread.done += units.bytes[unit];
    threads.push(thread);
  }
  return most;
}

// The busiest thread has 15% more than the mean at most, or one grain more where that is more: then
// the threads have six grains each, or fewer.
TEST(Splits, UpTo64ThreadsBalance) {
  double worst = 0;
  for (const int page : {64, 128, 256}) {
    for (const int heads : {1, 2, 3, 4, 5, 8, 32}) {
      for (int context = 1024; context <= 128 * 1024; context += context / 2) {
        for (const KvRead read : {KvRead::kUpper, KvRead::kBoth, KvRead::kFull}) {
          const Reads reads{128, page, heads, context, read};
          const Units units = units_of(reads);
          for (int threads = 1; threads <= 64; ++threads) {
            const double mean = units.total / threads;
            const double most = busiest(units, threads);
            worst = std::max(worst, most / std::max(1.15 * mean, mean + units.grain));
            ASSERT_LE(most, std::max(1.15 * mean, mean + units.grain) * (1 + 1e-9))
                << "page " << page << ", " << heads << " kv heads, context " << context << ", read "
                << static_cast<int>(read) << ", " << threads << " threads, mean "
                << mean / units.grain << " grains";
          }
        }
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

// What partial results cost grows with the splits.
TEST(Splits, AreFew) {
  const SplitBorders borders(4, 1);
  EXPECT_EQ(borders.splits(7), 7);       // 1k tokens in pages of 128
  EXPECT_EQ(borders.splits(63), 42);     // 8k
  EXPECT_EQ(borders.splits(255), 71);    // 32k
  EXPECT_EQ(borders.splits(1023), 167);  // 128k
}

}  // namespace
}  // namespace quantspec::cpu
