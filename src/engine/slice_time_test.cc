#include "engine/slice_time.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quantspec {
namespace {

TEST(SliceTime, IsProportionalUntilSizesDiffer) {
  SliceTime time;
  EXPECT_EQ(time.seconds(1e9), 0);
  for (int i = 0; i < 5; ++i) time.observe(1e9, 0.02);
  EXPECT_NEAR(time.seconds(1e9), 0.02, 0.002);
  EXPECT_NEAR(time.seconds(2e9), 0.04, 0.004);
}

TEST(SliceTime, TellsTheOverheadFromTheRate) {
  SliceTime time;
  const auto true_seconds = [](double products) { return 1e-3 + 1e-11 * products; };
  for (int i = 0; i < 40; ++i) {
    const double products = 1e8 * (1 + i % 4);
    time.observe(products, true_seconds(products));
  }
  for (const double products : {1e7, 1e8, 1e9}) {
    EXPECT_NEAR(time.seconds(products), true_seconds(products), 0.06 * true_seconds(products));
  }
}

TEST(SliceTime, FollowsALongerContextOrABusierMachine) {
  SliceTime time;
  for (int i = 0; i < 50; ++i) time.observe(1e8 * (1 + i % 3), 1e-3 * (1 + i % 3));
  for (int i = 0; i < 12; ++i) time.observe(1e8 * (1 + i % 3), 3e-3 * (1 + i % 3));
  EXPECT_GT(time.seconds(1e8), 2e-3);
}

TEST(SliceTime, IsNeverNegativeAndIgnoresWhatNoClockSays) {
  SliceTime time;
  time.observe(1e8, 5e-3);
  time.observe(5e8, 1e-3);  // more in less time
  EXPECT_GE(time.seconds(0), 0);
  EXPECT_GE(time.seconds(1e10), time.seconds(0));
  const double before = time.seconds(1e8);
  time.observe(1e8, 0);
  time.observe(1e8, NAN);
  time.observe(1e8, INFINITY);
  EXPECT_EQ(time.seconds(1e8), before);
}

}  // namespace
}  // namespace quantspec
