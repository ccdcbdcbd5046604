// Tokens that are looked up, beside what plans draft.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <vector>

#include "speculative/draft_lengths_test_support.h"

namespace quantspec {
namespace {

using Batch = DraftBatch;

int rounds_looked_up(Batch& batch, int count, int accept, std::size_t sequence = 0) {
  int rounds = 0;
  for (int i = 0; i < count; ++i) {
    const Batch::Round round = batch.rounds(1, accept);
    rounds += round.looked_up[sequence] && round.lengths[sequence] > 0;
  }
  return rounds;
}

TEST(DraftLengths, TokensThatWereLookedUpTakeThePlaceOfDraftsWhereTheyYieldMore) {
  Batch batch = Batch::that_looks_up(1, {2e-3});
  batch.find({0}, 0, 0);
  batch.rounds(200, 4);
  EXPECT_FALSE(batch.lengths.off());
  EXPECT_EQ(rounds_looked_up(batch, 100, 4), 0);
  batch.find({16}, 0.1f, 0);  // what is hardly ever right
  EXPECT_EQ(rounds_looked_up(batch, 100, 4), 0);
  batch.find({16}, 0.95f, 16);
  EXPECT_GT(rounds_looked_up(batch, 100, 4), 90);  // but for probes
  EXPECT_GT(batch.rounds(1, 4).lengths[0], 8);
  batch.find({2}, 0.95f, 2);  // too few, beside drafts
  EXPECT_LT(rounds_looked_up(batch, 100, kMaxDraftLen), 50);
}

TEST(DraftLengths, TokensAreLookedUpWhereDraftsDoNotPay) {
  Batch batch = Batch::that_looks_up(1, {9e-3});
  batch.find({8}, 0.7f, 4);
  batch.rounds(100, 0);
  EXPECT_FALSE(batch.lengths.off());
  EXPECT_GT(rounds_looked_up(batch, 100, 0), 85);
  EXPECT_NE(batch.lengths.explain().find("looked up"), std::string::npos);
  batch.find({8}, 0.01f, 0);
  EXPECT_EQ(rounds_looked_up(batch, 100, 0), 0);
  EXPECT_TRUE(batch.lengths.off());
}

TEST(DraftLengths, WithoutPlansTokensAreLookedUp) {
  Batch batch = Batch::that_looks_up(2, {});
  batch.find({8, 0}, 0.8f, 5);
  batch.rounds(20, 0);
  const Batch::Round round = batch.rounds(1, 0);
  EXPECT_GT(round.lengths[0], 2);
  EXPECT_EQ(round.lengths[1], 0);
  EXPECT_GT(batch.lengths.expected().chosen, 1.2 * batch.lengths.expected().plain);
}

// Those for which nothing was found draft by the plan meanwhile.
TEST(DraftLengths, SomeLookUpWhileOthersDraft) {
  Batch batch = Batch::that_looks_up(4, {1e-3});
  batch.find({16, 0, 16, 0}, 0.95f, 16);
  batch.rounds(200, 6);
  int mixed = 0;
  for (int i = 0; i < 50; ++i) {
    const Batch::Round round = batch.rounds(1, 6);
    mixed += round.looked_up[0] && round.looked_up[2] && round.plan == 0 && round.lengths[0] > 8 &&
             round.lengths[1] > 2 && round.lengths[3] > 2;
  }
  EXPECT_GT(mixed, 40);
}

TEST(DraftLengths, AFixedLengthIsOfTokensLookedUpToo) {
  Batch alone = Batch::that_looks_up(1, {}, 5);
  alone.find({9}, 0.1f, 0);
  EXPECT_EQ(alone.rounds(1, 0).lengths[0], 5);
  alone.find({3}, 0.1f, 0);
  EXPECT_EQ(alone.rounds(1, 0).lengths[0], 3);
  Batch plain = Batch::that_looks_up(1, {}, 0);
  plain.find({9}, 0.9f, 9);
  EXPECT_EQ(plain.rounds(1, 0).lengths[0], 0);
  Batch beside = Batch::that_looks_up(1, {1e-3}, 5);
  beside.find({9}, 0.1f, 0);
  beside.rounds(50, 3);
  EXPECT_FALSE(beside.rounds(1, 3).looked_up[0]);
  beside.find({9}, 0.99f, 5);
  EXPECT_TRUE(beside.rounds(1, 3).looked_up[0]);
}

TEST(DraftLengths, TokensLookedUpKeepToTheRowsOfAPass) {
  for (const std::optional<int> length : {std::optional(16), std::optional<int>()}) {
    Batch batch = Batch::that_looks_up(100, {1e-3}, length);
    batch.find(std::vector<int>(100, 16), 0.99f, 16);
    for (int i = 0; i < 60; ++i) {
      const Batch::Round round = batch.rounds(1, 16);
      EXPECT_LE(100 + std::reduce(round.lengths.begin(), round.lengths.end()), 1024);
    }
  }
}

// A request of one token more is no reason to say that drafts do not pay.
TEST(DraftLengths, ARoundInWhichNothingCanBeDraftedSaysNothing) {
  Batch batch = Batch::that_looks_up(1, {1e-3});
  batch.caps[0] = 0;
  batch.rounds(1, 0);
  EXPECT_NE(batch.lengths.explain().find("still measuring"), std::string::npos);
  EXPECT_EQ(batch.lengths.expected().chosen, 0);
}

}  // namespace
}  // namespace quantspec
