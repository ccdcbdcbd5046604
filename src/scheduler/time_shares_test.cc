#include "scheduler/time_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quantspec {
namespace {

// Rounds and slices of these times, as an engine runs them; prefill's share of the time.
class Device {
 public:
  double share() const { return slices / (rounds + slices); }
  void round(double seconds, bool prefill_waits = true) {
    shares.round_ran(seconds, prefill_waits);
    rounds += seconds;
    step = seconds;
  }
  void prefill(double slice) {
    while (shares.slice_seconds() > 0) {
      shares.slices_ran(slice);
      slices += slice;
      step += slice;
    }
    longest = std::max(longest, step);
  }

  TimeShares shares;
  double rounds = 0, slices = 0, step = 0, longest = 0;  // seconds
};

TEST(TimeShares, PrefillGetsItsMostWithoutAWantedInterval) {
  std::mt19937 random(1);
  for (const double most : {0.2, 0.5, 0.8}) {
    for (const double slice : {0.0004, 0.020, 0.300}) {  // of rounds of 5 to 50 ms
      Device device{TimeShares(0.1, most, std::nullopt)};
      for (int i = 0; i < 20'000; ++i) {
        device.round(std::uniform_real_distribution(0.005, 0.050)(random));
        device.prefill(slice);
      }
      EXPECT_NEAR(device.share(), most, 0.05 * most) << slice;
      // A step has what the round allows, and one slice.
      EXPECT_LE(device.longest, 0.050 / (1 - most) + slice);
    }
  }
}

TEST(TimeShares, SlicesFillTheIntervalBetweenTokens) {
  Device device{TimeShares(0.1, 0.5, 0.050)};
  for (int i = 0; i < 10'000; ++i) {
    device.round(0.030);
    device.prefill(0.001);
  }
  EXPECT_NEAR(device.longest, 0.050, 0.0011);
  EXPECT_NEAR(device.share(), 20.0 / 50, 0.02);
}

TEST(TimeShares, SlowRoundsLeavePrefillItsLeast) {
  for (const double slice : {0.001, 0.040}) {
    Device device{TimeShares(0.1, 0.5, 0.050)};
    for (int i = 0; i < 5'000; ++i) {
      device.round(0.010);  // first it takes more than its least, which is no debt
      device.prefill(slice);
    }
    Device slow{device.shares};
    for (int i = 0; i < 10; ++i) {
      slow.round(0.060);
      slow.prefill(slice);
    }
    EXPECT_GT(slow.slices, 0);
    for (int i = 0; i < 10'000; ++i) {
      slow.round(0.060);
      slow.prefill(slice);
    }
    EXPECT_NEAR(slow.share(), 0.1, 0.005) << slice;
  }
}

TEST(TimeShares, FastRoundsLeaveDecodingItsShare) {
  Device device{TimeShares(0.1, 0.5, 10.0)};  // an interval that is never reached
  for (int i = 0; i < 10'000; ++i) {
    device.round(0.010);
    device.prefill(0.003);
  }
  EXPECT_NEAR(device.share(), 0.5, 0.025);
}

// Prompts of one slice, each after the last: what a slice took too long is paid by the rounds
// without any.
TEST(TimeShares, PromptsThatComeAndGoTakeNoMore) {
  Device device{TimeShares(0.1, 0.5, std::nullopt)};
  for (int i = 0; i < 10'000; ++i) {
    device.round(0.005, i % 2 == 0);
    if (device.shares.slice_seconds() > 0) {
      device.shares.slices_ran(0.020);
      device.slices += 0.020;
    }
  }
  EXPECT_LE(device.share(), 0.5 * 1.05);
  EXPECT_GE(device.share(), 0.4);
}

TEST(TimeShares, ASliceThatTookVeryLongIsMadeUpForOnlySoFar) {
  Device device{TimeShares(0.1, 0.5, std::nullopt)};
  device.round(0.010);
  device.prefill(60);
  int rounds = 0;
  for (; device.shares.slice_seconds() <= 0; ++rounds) device.round(0.010);
  EXPECT_NEAR(rounds, TimeShares::kMostDebt / 0.010, 1);
}

TEST(TimeShares, TimeWithoutPromptsIsNoCredit) {
  Device device{TimeShares(0.1, 0.5, std::nullopt)};
  for (int i = 0; i < 1000; ++i) device.round(0.010, false);
  EXPECT_LE(device.shares.slice_seconds(), 0);
  device.round(0.010);
  EXPECT_DOUBLE_EQ(device.shares.slice_seconds(), 0.010);
}

TEST(TimeShares, AClockThatStandsStillDoesNotStopPrefill) {
  TimeShares shares(0.1, 0.5, std::nullopt);
  shares.round_ran(0, true);
  EXPECT_GT(shares.slice_seconds(), 0);
}

}  // namespace
}  // namespace quantspec
