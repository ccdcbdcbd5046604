#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"

namespace quantspec {
namespace {

// Pools from one thread to more threads than this machine has cores.
class ThreadPools : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};

TEST_P(ThreadPools, ShareCallsTheCallerAndEachWorkerAtMostOnce) {
  EXPECT_EQ(pool_.num_threads(), GetParam());
  for (int region = 0; region < 200; ++region) {
    std::vector<std::atomic<int>> calls(GetParam());
    pool_.share([&](int thread) { ++calls.at(thread); });
    EXPECT_EQ(calls[0], 1);
    for (int thread = 0; thread < GetParam(); ++thread) {
      ASSERT_LE(calls[thread], 1);
    }
  }
}

// A region that lasts has every worker in it: else nothing would be parallel.
TEST_P(ThreadPools, WorkersComeToARegionThatLasts) {
  std::atomic<int> inside = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  pool_.share([&](int) {
    ++inside;
    while (inside < GetParam() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(inside, GetParam());
}

TEST_P(ThreadPools, ParallelForCallsEveryIndexOnce) {
  for (const int count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    std::atomic<bool> known_thread = true;
    pool_.parallel_for(count, [&](std::int64_t i, int thread) {
      ++calls.at(i);
      if (thread < 0 || thread >= GetParam()) known_thread = false;
    });
    for (const auto& calls_of_index : calls) ASSERT_EQ(calls_of_index, 1);
    EXPECT_TRUE(known_thread);
  }
}

// What a region writes is visible to the caller and to the next region, thousands of times.
TEST_P(ThreadPools, ThousandsOfRegionsSeeEachOthersWrites) {
  const int regions = GetParam() <= 2 ? 10000 : 2000;
  std::vector<std::int64_t> values(64, 0);
  for (int region = 0; region < regions; ++region) {
    pool_.parallel_for(std::ssize(values), [&](std::int64_t i, int) { values[i] += i; });
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<std::int64_t>(i) * regions);
  }
}

TEST_P(ThreadPools, WakesAfterSleeping) {
  for (int region = 0; region < 5; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far beyond the spinning
    std::atomic<int> inside = 0;
    pool_.share([&](int) {
      ++inside;
      while (inside < GetParam()) std::this_thread::yield();
    });
    ASSERT_EQ(inside, GetParam());
  }
}

TEST_P(ThreadPools, RethrowsAnExceptionAndStaysUsable) {
  for (int region = 0; region < 50; ++region) {
    EXPECT_THROW(pool_.share([&](int thread) {
      if (thread == 0) throw std::out_of_range("thrown in a region");
    }),
                 std::out_of_range);
    EXPECT_THROW(pool_.parallel_for(100,
                                    [&](std::int64_t i, int) {
                                      if (i == 57) fail(ErrorKind::kInvalidRequest, "index {}", i);
                                    }),
                 Error);
    std::atomic<int> calls = 0;
    pool_.parallel_for(10, [&](std::int64_t, int) { ++calls; });
    ASSERT_EQ(calls, 10);
  }
}

TEST_P(ThreadPools, RethrowsOneExceptionWhenAllThreadsThrow) {
  EXPECT_THROW(pool_.share([](int) { throw std::runtime_error("all"); }), std::runtime_error);
  EXPECT_NO_THROW(pool_.share([](int) {}));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPools, testing::Values(1, 2, 3, 4, 8));

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 100; ++i) ThreadPool pool(1 + i % 5);
}

// Two nodes, made up of the processors that there are.
Topology two_nodes() {
  std::vector<int> all = allowed_processors();
  const auto middle = all.begin() + std::max<std::ptrdiff_t>(1, std::ssize(all) / 2);
  Topology topology{{{all.begin(), middle}, {middle, all.end()}}};
  if (topology.nodes[1].empty()) topology.nodes[1] = topology.nodes[0];
  return topology;
}

TEST(ThreadPool, WorkersStayOnTheirNode) {
  const Topology topology = two_nodes();
  const std::vector<int> node = topology.nodes_of_threads(6);
  ThreadPool pool(6, topology);
  EXPECT_EQ(pool.num_nodes(), 2);
  std::atomic<int> inside = 0;
  pool.share([&](int thread) {
    const int processor = sched_getcpu();
    const auto& own = topology.nodes[node[thread]];
    EXPECT_TRUE(thread == 0 || std::ranges::find(own, processor) != own.end()) << thread;
    ++inside;
    while (inside < 6) std::this_thread::yield();
  });
}

TEST(ThreadPool, NodesChangeWhoComputesAndNothingElse) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads, two_nodes());
    EXPECT_EQ(pool.num_nodes(), std::min(threads, 2));
    const IndexRange ranges[] = {{3, 50}, {200}};
    std::vector<std::atomic<int>> calls(350);
    pool.parallel_for(ranges, [&](std::int64_t i, int) { ++calls.at(i); });
    for (const auto& times : calls) ASSERT_EQ(times, 1);
    EXPECT_THROW(pool.parallel_for(100, [](std::int64_t, int) { throw std::out_of_range("all"); }),
                 std::out_of_range);
  }
}

TEST(ThreadPool, RefusesToHaveNoThread) { EXPECT_THROW(ThreadPool(0), Error); }

TEST(ThreadPool, PhysicalCoresAreBetweenOneAndTheLogicalOnes) {
  EXPECT_GE(num_physical_cores(), 1);
  EXPECT_LE(num_physical_cores(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace quantspec
