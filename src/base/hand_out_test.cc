#include "base/hand_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/topology.h"

namespace quantspec {
namespace {

using testing::ElementsAre;
using testing::Ge;

std::vector<std::int64_t> take(HandOut& hand_out, int thread, int times) {
  std::vector<std::int64_t> taken;
  for (int i = 0; i < times; ++i) taken.push_back(hand_out.take(thread));
  return taken;
}

TEST(HandOut, OneNodeGivesIndicesInOrderToWhoeverAsks) {
  HandOut hand_out({0, 0, 0});
  const IndexRange ranges[] = {{2}, {1, 3}};
  hand_out.start(ranges);
  EXPECT_EQ(hand_out.count(), 5);
  EXPECT_EQ(hand_out.take(2), 0);
  EXPECT_EQ(hand_out.take(0), 1);
  EXPECT_THAT(take(hand_out, 1, 3), ElementsAre(2, 3, 4));
  EXPECT_THAT(take(hand_out, 0, 2), ElementsAre(Ge(5), Ge(5)));
}

TEST(HandOut, ANodeTakesItsOwnShareThenHelpsTheNext) {
  HandOut hand_out({0, 1, 2});
  const IndexRange ranges[] = {{9}};
  hand_out.start(ranges);
  EXPECT_EQ(hand_out.take(2), 6);
  EXPECT_EQ(hand_out.take(0), 0);
  EXPECT_THAT(take(hand_out, 1, 3), ElementsAre(3, 4, 5));
  // Node 1 is done: it helps node 2, then node 0.
  EXPECT_THAT(take(hand_out, 1, 5), ElementsAre(7, 8, 1, 2, 9));
  for (int thread = 0; thread < 3; ++thread) EXPECT_EQ(hand_out.take(thread), 9);
}

TEST(HandOut, ANodesShareIsByItsThreads) {
  HandOut hand_out({0, 0, 0, 1});
  const IndexRange ranges[] = {{8}};
  hand_out.start(ranges);
  EXPECT_THAT(take(hand_out, 3, 3), ElementsAre(6, 7, 0));
  EXPECT_THAT(take(hand_out, 1, 6), ElementsAre(1, 2, 3, 4, 5, 8));
}

// What lets weights and K and V lie where they are read: a kv head's units are one node's in every
// split, and an output of a matrix one node's, whatever is computed beside it.
TEST(HandOut, ASharesPlaceInARangeDoesNotDependOnRepeatsOrOnOtherRanges) {
  HandOut hand_out({0, 1});
  const IndexRange heads[] = {{4, 3}};
  hand_out.start(heads);
  EXPECT_THAT(take(hand_out, 1, 6), ElementsAre(2, 3, 6, 7, 10, 11));
  EXPECT_THAT(take(hand_out, 0, 6), ElementsAre(0, 1, 4, 5, 8, 9));
  const IndexRange matrices[] = {{6}, {2}, {3}};
  hand_out.start(matrices);
  EXPECT_THAT(take(hand_out, 0, 5), ElementsAre(0, 1, 2, 6, 8));
  EXPECT_THAT(take(hand_out, 1, 6), ElementsAre(3, 4, 5, 7, 9, 10));
}

TEST(HandOut, FewerIndicesThanNodesAllGoOutOnce) {
  HandOut hand_out({0, 1, 2, 3});
  const IndexRange ranges[] = {{1, 2}, {0}, {2}};
  for (int thread = 0; thread < 4; ++thread) {
    hand_out.start(ranges);
    std::vector<std::int64_t> taken = take(hand_out, thread, 4);
    std::ranges::sort(taken);
    EXPECT_THAT(taken, ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(hand_out.take(thread), 4);
  }
  hand_out.start({});
  EXPECT_EQ(hand_out.take(0), 0);
}

TEST(HandOut, NodesWithoutThreadsHaveNoShare) {
  HandOut hand_out({0, 2});
  const IndexRange ranges[] = {{4}};
  hand_out.start(ranges);
  EXPECT_THAT(take(hand_out, 1, 2), ElementsAre(2, 3));
  EXPECT_THAT(take(hand_out, 0, 3), ElementsAre(0, 1, 4));
}

TEST(HandOut, NodesOutOfOrderAreRefused) { EXPECT_THROW(HandOut({1, 0}), Error); }

// Two nodes of four processors each, and the placement of a model's memory: whoever touches first
// is whoever reads later, when all threads are equally fast.
TEST(HandOut, EqualThreadsReadWhatTheirNodeTouchedFirst) {
  const std::vector<int> node = Topology{{{0, 1, 2, 3}, {4, 5, 6, 7}}}.nodes_of_threads(8);
  HandOut hand_out(node);
  const auto nodes_of = [&](std::vector<IndexRange> ranges) {
    hand_out.start(ranges);
    std::vector<int> result(hand_out.count(), -1);
    for (std::int64_t taken = 0; taken < hand_out.count();) {
      for (int thread = 0; thread < 8; ++thread) {
        const std::int64_t index = hand_out.take(thread);
        if (index >= hand_out.count()) continue;
        result[index] = node[thread];
        ++taken;
      }
    }
    return result;
  };
  // Blocks of 16 outputs that are made, and units of four blocks that are computed, of two
  // matrices.
  const auto made = nodes_of({{64}}), small = nodes_of({{32}}), computed = nodes_of({{16}, {8}});
  for (int unit = 0; unit < 16; ++unit) EXPECT_EQ(computed[unit], made[4 * unit]) << unit;
  for (int unit = 0; unit < 8; ++unit) EXPECT_EQ(computed[16 + unit], small[4 * unit]) << unit;
  // Eight kv heads: 60 pages are quantized in a prefill and one later, and read in 20 splits.
  const auto prefilled = nodes_of({{8, 60}}), later = nodes_of({{8, 1}}),
             read = nodes_of({{8, 20}});
  for (int i = 0; i < 480; ++i) EXPECT_EQ(prefilled[i], later[i % 8]) << i;
  for (int i = 0; i < 160; ++i) EXPECT_EQ(read[i], later[i % 8]) << i;
}

TEST(HandOut, ManyThreadsTakeEveryIndexOnce) {
  HandOut hand_out({0, 0, 1, 1});
  for (int round = 0; round < 20; ++round) {
    const IndexRange ranges[] = {{5, 100}, {777}};
    hand_out.start(ranges);
    std::vector<std::atomic<int>> taken(hand_out.count());
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::int64_t i; (i = hand_out.take(thread)) < hand_out.count();) ++taken.at(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& times : taken) ASSERT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace quantspec
