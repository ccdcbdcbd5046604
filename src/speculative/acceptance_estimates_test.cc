#include "speculative/acceptance_estimates.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"

namespace quantspec {
namespace {

// One sequence that accepts `accepted` of `drafted`, round by round.
void run(PlanAcceptance& plan, SequenceAcceptance& sequence, int drafted, int accepted,
         int rounds) {
  for (int i = 0; i < rounds; ++i) {
    plan.observe(drafted, accepted);
    plan.end_round();
    sequence.observe(plan, drafted, accepted);
  }
}

TEST(PlanAcceptance, LearnsByPosition) {
  PlanAcceptance plan;
  EXPECT_NEAR(plan.pooled(), 0.8f, 1e-6f);
  for (int i = 0; i < 400; ++i) {
    plan.observe(2, i % 2 == 0 ? 2 : 1);  // 1.0, then 0.5
    plan.end_round();
  }
  EXPECT_GT(plan.at(0), 0.9f);
  EXPECT_NEAR(plan.at(1), 0.58f, 0.06f);
  EXPECT_NEAR(plan.at(9), plan.pooled(), 1e-5f);
  EXPECT_NEAR(plan.pooled(), 0.75f, 0.02f);
}

// However many sequences it drafts for, it follows their text.
TEST(PlanAcceptance, FollowsChangesInALargeBatch) {
  PlanAcceptance plan;
  const auto rounds = [&](int count, int sequences, int accepted) {
    for (int i = 0; i < count; ++i) {
      for (int s = 0; s < sequences; ++s) plan.observe(2, accepted);
      plan.end_round();
    }
  };
  rounds(1000, 256, 0);
  EXPECT_LT(plan.pooled(), 0.08f);  // 20 trials of the prior, 0.8, beside 200 that were rejected
  rounds(30, 8, 2);
  EXPECT_GT(plan.pooled(), 0.6f);
}

TEST(SequenceAcceptance, BeginsWithWhatIsKnownOfThePlan) {
  PlanAcceptance plan;
  SequenceAcceptance first(plan);
  EXPECT_NEAR(first.survival()[0], 0.8f, 1e-5f);
  run(plan, first, 4, 4, 200);
  EXPECT_GT(SequenceAcceptance(plan).survival()[3], 0.9f);
}

TEST(SequenceAcceptance, LeavesThePlansEstimateAndReturnsToIt) {
  PlanAcceptance plan;
  SequenceAcceptance good(plan), bad(plan);
  run(plan, good, 4, 4, 300);
  for (int i = 0; i < 10; ++i) bad.observe(plan, 2, 0);
  EXPECT_LT(bad.survival()[0], 0.6f);
  bad.idle(plan, 2000);
  EXPECT_NEAR(bad.survival()[0], SequenceAcceptance(plan).survival()[0], 0.02f);
}

// A sequence worse than most is worse at positions, too, that it was not drafted to.
TEST(SequenceAcceptance, JudgesDeepPositionsByItsOwn) {
  PlanAcceptance plan;
  SequenceAcceptance good(plan), bad(plan);
  run(plan, good, 8, 8, 300);
  for (int i = 0; i < 100; ++i) bad.observe(plan, 1, i % 2);
  EXPECT_NEAR(bad.survival()[0], 0.5f, 0.1f);
  EXPECT_NEAR(bad.survival()[1], 0.27f, 0.1f);
}

TEST(SequenceAcceptance, HopesLessTheMoreItKnows) {
  PlanAcceptance plan;
  SequenceAcceptance sequence(plan);
  const float before = sequence.hopeful()[0] - sequence.survival()[0];
  run(plan, sequence, 2, 1, 100);
  const float after = sequence.hopeful()[0] - sequence.survival()[0];
  EXPECT_GT(before, 0.05f);
  EXPECT_LT(after, before / 2);
}

RC_GTEST_PROP(SequenceAcceptance, IsAChainOfProbabilities, ()) {
  PlanAcceptance plan;
  SequenceAcceptance sequence(plan);
  const int rounds = *rc::gen::inRange(0, 100);
  for (int i = 0; i < rounds; ++i) {
    const int drafted = *rc::gen::inRange(1, kMaxDraftLen + 1);
    const int accepted = *rc::gen::inRange(0, drafted + 1);
    if (*rc::gen::inRange(0, 4) == 0) {
      sequence.idle(plan, *rc::gen::inRange(1, 1000));
    } else {
      run(plan, sequence, drafted, accepted, 1);
    }
    float before = 1, hopeful_before = 1;
    for (int d = 0; d < kMaxDraftLen; ++d) {
      RC_ASSERT(sequence.survival()[d] >= 0 && sequence.survival()[d] <= before);
      RC_ASSERT(sequence.hopeful()[d] >= sequence.survival()[d]);
      RC_ASSERT(sequence.hopeful()[d] <= hopeful_before);
      before = sequence.survival()[d], hopeful_before = sequence.hopeful()[d];
    }
  }
}

TEST(SequenceAcceptance, RefusesImpossibleRounds) {
  PlanAcceptance plan;
  SequenceAcceptance sequence(plan);
  EXPECT_THROW(sequence.observe(plan, 2, 3), Error);
  EXPECT_THROW(sequence.observe(plan, 0, 0), Error);
  EXPECT_THROW(sequence.observe(plan, 2, -1), Error);
}

TEST(CommonAcceptance, APlanThatWasNotTriedIsThoughtToFareAsTheOthers) {
  CommonAcceptance common(2);
  EXPECT_EQ(common.expected(1, 0.97f), 0.97f);
  for (int i = 0; i < 40; ++i) common.observe(0, 0.88f, 4, 0), common.end_round();
  EXPECT_LT(common.expected(1, 0.97f), 0.6f);
  EXPECT_GT(common.expected(1, 0.97f), common.expected(1, 0.8f));
  for (int i = 0; i < 300; ++i) common.observe(0, 0.88f, 4, 4), common.end_round();
  EXPECT_GT(common.expected(1, 0.8f), 0.8f);
  EXPECT_LT(common.expected(1, 0.8f), 0.95f);
  EXPECT_EQ(common.expected(0, 0.88f), 0.88f);  // by its own it is not judged twice
}

TEST(PlanAcceptance, BeginsWithItsPrior) {
  PlanAcceptance plan(0.9f);
  EXPECT_FLOAT_EQ(plan.pooled(), 0.9f);
  plan.expect(0.6f);
  EXPECT_FLOAT_EQ(plan.pooled(), 0.6f);
  for (int i = 0; i < 100; ++i) plan.observe(3, 3);
  EXPECT_GT(plan.pooled(), 0.95f);
  EXPECT_THROW(PlanAcceptance(1.0f), Error);
}

}  // namespace
}  // namespace quantspec
