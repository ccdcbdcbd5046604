#include "speculative/cost_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace quantspec {
namespace {

constexpr double kTargetBytes = 8e9;
const std::vector<double> kPlanBytes = {2e9, 4e9};

TEST(CostModel, AnUnmeasuredPlanReadsBytesAtTheTargetsRate) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  for (int i = 0; i < 5; ++i) costs.observe(-1, {}, 0, {.rows = 1}, 0.04);
  EXPECT_NEAR(costs.target().seconds({.rows = 1}), 0.04, 1e-3);
  EXPECT_NEAR(costs.draft(0).seconds({.rows = 1}), 0.01, 1e-3);
  EXPECT_NEAR(costs.draft(1).seconds({.rows = 1}), 0.02, 1e-3);
  EXPECT_FALSE(costs.draft(0).measured());
}

TEST(CostModel, LearnsEveryPlanByItself) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  for (int i = 0; i < 50; ++i) {
    const std::vector<PassLoad> drafts(3, {.rows = 2});
    costs.observe(0, drafts, 3 * 0.005, {.rows = 8}, 0.05);
  }
  EXPECT_NEAR(costs.draft(0).seconds({.rows = 2}), 0.005, 2e-4);
  EXPECT_NEAR(costs.target().seconds({.rows = 8}), 0.05, 2e-3);
  EXPECT_EQ(costs.target().most_rows(), 8);
  EXPECT_FALSE(costs.draft(1).measured());
  EXPECT_NEAR(costs.draft(1).seconds({.rows = 1}), 0.025, 3e-3);
}

TEST(CostModel, TakesWhatWasMeasuredAtLoad) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  costs.set_target_prior({.rows = 1}, 0.02);
  costs.set_draft_prior(1, {.rows = 1}, 0.015);
  EXPECT_NEAR(costs.target().seconds({.rows = 1}), 0.02, 1e-3);
  EXPECT_NEAR(costs.draft(0).seconds({.rows = 1}), 0.005, 5e-4);
  EXPECT_NEAR(costs.draft(1).seconds({.rows = 1}), 0.015, 1e-3);
}

TEST(CostModel, RefusesPlansThatItDoesNotHave) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  const std::vector<PassLoad> drafts = {{.rows = 1}};
  EXPECT_THROW(costs.observe(2, drafts, 1, {.rows = 1}, 1), Error);
  EXPECT_THROW(costs.set_draft_prior(-1, {.rows = 1}, 1), Error);
}

}  // namespace
}  // namespace quantspec
