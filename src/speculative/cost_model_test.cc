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
  EXPECT_FALSE(costs.draft(1).measured());
  EXPECT_NEAR(costs.draft(1).seconds({.rows = 1}), 0.025, 3e-3);
}

TEST(CostModel, TakesWhatWasMeasuredAtLoad) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  costs.set_prior({.load = {.rows = 1}, .seconds = 0.02});
  costs.set_prior({.plan = 1, .load = {.rows = 1}, .seconds = 0.015});
  EXPECT_NEAR(costs.target().seconds({.rows = 1}), 0.02, 1e-3);
  EXPECT_NEAR(costs.draft(0).seconds({.rows = 1}), 0.005, 5e-4);
  EXPECT_NEAR(costs.draft(1).seconds({.rows = 1}), 0.015, 1e-3);
}

TEST(CostModel, RefusesPlansThatItDoesNotHave) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  const std::vector<PassLoad> drafts = {{.rows = 1}};
  EXPECT_THROW(costs.observe(2, drafts, 1, {.rows = 1}, 1), Error);
  EXPECT_THROW(costs.set_prior({.plan = 2, .load = {.rows = 1}, .seconds = 1}), Error);
}

// Until a plan has drafted: its weights may be timed long before.
TEST(CostModel, ACacheIsReadAtTheTargetsRate) {
  CostModel costs(kTargetBytes, kPlanBytes, 64);
  costs.set_prior({.load = {.rows = 1}, .seconds = 0.02});
  costs.set_prior({.plan = 0, .load = {.rows = 1}, .seconds = 0.01});
  for (int i = 0; i < 10; ++i) costs.observe(-1, {}, 0, {.rows = 1, .kv_bytes = 1e9}, 0.03);
  const double rate = costs.target().kv_rate();
  EXPECT_NEAR(rate, 1e-11, 2e-12);
  EXPECT_EQ(costs.draft(0).kv_rate(), rate);
  EXPECT_NEAR(costs.draft(0).seconds({.rows = 1}), 0.01, 1e-4);
  const std::vector<PassLoad> drafts = {{.rows = 1, .kv_bytes = 1e9}};
  for (int i = 0; i < 20; ++i) costs.observe(0, drafts, 0.015, {.rows = 2, .kv_bytes = 1e9}, 0.03);
  EXPECT_NEAR(costs.draft(0).kv_rate(), 5e-12, 1e-12);
}

}  // namespace
}  // namespace quantspec
