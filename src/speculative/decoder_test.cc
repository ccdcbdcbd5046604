#include <gtest/gtest.h>

#include "speculative/speculative.h"

namespace quantspec {
namespace {

// Of `drafted` tokens at the first position and half as many at the second.
RoundStats stats(int drafted, int accepted) {
  RoundStats stats;
  stats.rounds = drafted;
  stats.drafted = drafted + drafted / 2;
  stats.accepted = accepted;
  stats.rejections = 1;
  stats.drafted_at[0] = drafted;
  stats.drafted_at[1] = drafted / 2;
  stats.accepted_at[0] = accepted;
  stats.draft_seconds = 1;
  stats.verify_seconds = 2;
  stats.commit_seconds = 0.5;
  return stats;
}

TEST(RoundStats, RatesByPositionEndWhereNothingWasDrafted) {
  EXPECT_TRUE(RoundStats().accepted_per_position().empty());
  EXPECT_EQ(stats(8, 6).accepted_per_position(), (std::vector<double>{0.75, 0}));
}

TEST(RoundStats, ASumHasTheRatesOfAllRounds) {
  RoundStats sum = stats(8, 6);
  sum += stats(4, 3);
  EXPECT_EQ(sum.rounds, 12);
  EXPECT_EQ(sum.drafted, 18);
  EXPECT_EQ(sum.accepted, 9);
  EXPECT_EQ(sum.rejections, 2);
  EXPECT_EQ(sum.accepted_per_position(), (std::vector<double>{0.75, 0}));
  EXPECT_EQ(sum.drafted_at[1], 6);
  EXPECT_EQ(sum.draft_seconds, 2);
  EXPECT_EQ(sum.verify_seconds, 4);
  EXPECT_EQ(sum.commit_seconds, 1);
}

}  // namespace
}  // namespace quantspec
