#include "scheduler/owners.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quantspec {
namespace {

TEST(Owners, IdlenessSavesUpNoCredit) {
  Owners owners;
  for (const OwnerId owner : {1, 2, 3}) owners.add(owner);
  EXPECT_EQ(owners.enter(1), 0);
  owners.charge(1, 100);
  EXPECT_EQ(owners.enter(2), 100);  // as the least of those that compete
  owners.charge(2, 50);
  owners.charge(1, 30);
  EXPECT_EQ(owners.enter(3), 140);  // as 130 and 150 are on the mean
  EXPECT_EQ(owners.enter(3), 140);
  owners.charge(3, 1000);
  owners.leave(3);
  EXPECT_EQ(owners.enter(3), 1140);  // it competed all the time
  EXPECT_EQ(owners.num_competing(), 4u);
}

TEST(Owners, ComeWithNoLessThanTheLeastOfThoseThatCompete) {
  Owners owners;
  for (const OwnerId owner : {1, 2, 3}) owners.add(owner);
  owners.enter(1);
  owners.enter(2);
  owners.charge(1, 100);
  owners.leave(2);
  EXPECT_EQ(owners.enter(3), 100);  // although the two had 50 on the mean
}

TEST(Owners, WhoComesToNobodyGetsWhatTheLastHad) {
  Owners owners;
  owners.add(1);
  owners.add(2);
  owners.enter(1);
  owners.charge(1, 70);
  owners.leave(1);
  owners.charge(1, 7);  // of tokens that it still generates
  EXPECT_EQ(owners.enter(2), 70);
  owners.leave(2);
  EXPECT_EQ(owners.enter(1), 77);
  EXPECT_EQ(owners.charge(1, -7), 70);
  EXPECT_EQ(owners.counter(1), 70);
}

TEST(Owners, EndlessNewOnesComeToBeBehindAnOldOne) {
  Owners owners;
  owners.add(0);
  owners.enter(0);
  owners.charge(0, 10'000);
  owners.leave(0);
  owners.add(1);
  owners.enter(1);  // at 10,000
  EXPECT_EQ(owners.enter(0), 10'000);
  owners.charge(0, 1'000);
  double counter = 0;
  for (OwnerId owner = 2; owner < 40; ++owner) {
    owners.add(owner);
    counter = owners.enter(owner);
    owners.charge(owner, 100);
    owners.leave(owner);
    owners.remove(owner);
  }
  EXPECT_GT(counter, 11'000);  // 3 compete: after 1,000 * 3 at most
  EXPECT_LT(counter, 12'000);
}

TEST(Owners, ForgetsWhoWasIdleForLongest) {
  Owners owners;
  constexpr OwnerId kMany = 5000;
  for (OwnerId owner = 0; owner < kMany; ++owner) {
    owners.add(owner);
    owners.charge(owner, 5);
    owners.remove(owner);
  }
  EXPECT_EQ(owners.size(), Owners::kMostIdle);
  EXPECT_EQ(owners.counter(kMany - 1), 5);
  EXPECT_EQ(owners.counter(kMany - Owners::kMostIdle), 5);
  owners.add(kMany - Owners::kMostIdle);  // not idle: another goes
  owners.add(1);
  EXPECT_EQ(owners.counter(1), 0);
  owners.remove(1);
  EXPECT_EQ(owners.size(), Owners::kMostIdle + 1);
}

TEST(Owners, ExpectsMeanAndSigmaOfWhatAnOwnerWrote) {
  Owners owners;
  owners.add(1);
  owners.add(2);
  EXPECT_EQ(owners.expected_output(1, 500, 1), 500);  // nothing is known
  for (int i = 0; i < 200; ++i) owners.observe_output(1, i % 2 == 0 ? 80 : 120);
  EXPECT_NEAR(owners.expected_output(1, 500, 1), 120, 3);  // 100 + 20
  EXPECT_NEAR(owners.expected_output(1, 500, 1.5), 180, 5);
  EXPECT_EQ(owners.expected_output(1, 50, 1), 50);
  EXPECT_NEAR(owners.expected_output(2, 500, 1), 120, 3);  // as everybody
  for (int i = 0; i < 50; ++i) owners.observe_output(2, 10);
  EXPECT_EQ(owners.expected_output(2, 500, 1), 10);
  EXPECT_NEAR(owners.expected_output(1, 500, 1), 120, 3);
}

TEST(OutputStatistics, IsTheMeanAndSpreadOfTheFirstFew) {
  OutputStatistics outputs;
  for (const double tokens : {10, 20, 60}) outputs.observe(tokens);
  EXPECT_NEAR(outputs.upper(), 30 + std::sqrt((400 + 100 + 900) / 3.0), 1e-9);
}

TEST(Caution, RisesWithPreemptionsAndFallsWithTime) {
  Caution caution;
  EXPECT_EQ(caution.factor(0), 1);
  caution.preempted(10);
  EXPECT_EQ(caution.factor(10), 1.25);
  EXPECT_EQ(caution.factor(40), 1.125);
  caution.preempted(40);
  EXPECT_EQ(caution.factor(40), 1.375);
  for (int i = 0; i < 100; ++i) caution.preempted(50);
  EXPECT_EQ(caution.factor(50), 1 + Caution::kMostExcess);
  EXPECT_NEAR(caution.factor(1000), 1, 1e-6);
}

}  // namespace
}  // namespace quantspec
