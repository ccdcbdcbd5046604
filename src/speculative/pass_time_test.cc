#include "speculative/pass_time.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"

namespace quantspec {
namespace {

constexpr double kBytes = 1e9;
using Truth = std::function<double(const PassLoad&)>;

void observe(PassTime& time, const PassLoad& load, double seconds) {
  time.observe({&load, 1}, seconds);
}

double error(const PassTime& time, const PassLoad& load, const Truth& truth) {
  return std::abs(time.seconds(load) / truth(load) - 1);
}

// Measurements are 3% noisy and one in 50 is 3 to 18 times too long.
class Clock {
 public:
  explicit Clock(std::uint64_t seed, double noise = 0.03) : engine_(seed), noise_(noise) {}
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  double measure(double seconds) {
    const double usual = seconds * (1 + noise_ * std::abs(normal_(engine_)));
    return uniform() < 0.02 ? usual * (3 + 15 * uniform()) : usual;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  double noise_;
};

TEST(PassTime, ReadsBytesAtARateBeforeItIsMeasured) {
  PassTime time(kBytes, 64);
  time.set_rate(1e-11);
  EXPECT_FALSE(time.measured());
  EXPECT_NEAR(time.seconds({.rows = 1}), 0.01, 1e-9);
  EXPECT_NEAR(time.seconds({.rows = 1, .kv_bytes = 1e9}), 0.02, 1e-9);
  EXPECT_GT(time.seconds({.rows = 64}), time.seconds({.rows = 1}));
  EXPECT_LT(time.seconds({.rows = 64}), 2 * time.seconds({.rows = 1}));
}

TEST(PassTime, OneMeasurementSetsTheScale) {
  PassTime time(kBytes, 64);
  observe(time, {.rows = 2, .kv_bytes = 1e8}, 5.0);
  EXPECT_NEAR(time.seconds({.rows = 2, .kv_bytes = 1e8}), 5.0, 0.1);
  EXPECT_NEAR(time.seconds({.rows = 64}), 5.0 * 1.64 / 1.11, 0.8);
  EXPECT_TRUE(time.measured());
  time.set_rate(1e-11);  // too late
  EXPECT_NEAR(time.seconds({.rows = 2, .kv_bytes = 1e8}), 5.0, 0.1);
}

TEST(PassTime, LearnsATimeByRows) {
  const Truth truth = [](const PassLoad& load) { return 0.01 * std::max(1.0, load.rows / 8.0); };
  PassTime time(kBytes, 256);
  Clock clock(1);
  for (int i = 0; i < 600; ++i) {
    const PassLoad load{.rows = 1 + i * 37 % 64};
    observe(time, load, clock.measure(truth(load)));
  }
  for (const int rows : {1, 3, 7, 8, 12, 30, 64}) {
    EXPECT_LT(error(time, {.rows = rows}, truth), 0.08) << rows;
  }
  EXPECT_GT(time.uncertainty({.rows = 256}), 3 * time.uncertainty({.rows = 32}));
}

TEST(PassTime, TellsTheCacheFromTheWeights) {
  const Truth truth = [](const PassLoad& load) {
    return 0.004 + 1e-4 * load.rows + 2e-11 * load.kv_bytes + 1e-12 * load.row_bytes;
  };
  PassTime time(kBytes, 64);
  Clock clock(2);
  for (int i = 0; i < 1000; ++i) {
    PassLoad load{.rows = 1 + static_cast<int>(16 * clock.uniform())};
    load.kv_bytes = 1e9 * clock.uniform();
    load.row_bytes = load.kv_bytes * (load.rows - 1);
    observe(time, load, clock.measure(truth(load)));
  }
  EXPECT_NEAR(time.kv_rate(), 2e-11, 2e-12);
  EXPECT_NEAR(time.row_rate(), 1e-12, 3e-13);
  EXPECT_LT(error(time, {.rows = 4}, truth), 0.1);
}

// The passes of a round are timed together.
TEST(PassTime, TellsApartPassesThatWereTimedTogether) {
  const Truth truth = [](const PassLoad& load) { return load.rows <= 4 ? 0.002 : 0.005; };
  PassTime time(kBytes, 64);
  Clock clock(3);
  for (int i = 0; i < 400; ++i) {
    std::vector<PassLoad> passes;
    double seconds = 0;
    for (int rows = 2 + i % 15; rows > 1; rows /= 2) {
      passes.push_back({.rows = rows});
      seconds += truth(passes.back());
    }
    time.observe(passes, clock.measure(seconds));
  }
  for (const int rows : {2, 3, 4, 6, 8, 12, 16}) {
    EXPECT_LT(error(time, {.rows = rows}, truth), 0.15) << rows;
  }
}

TEST(PassTime, IgnoresOutliersAlsoAtTheStart) {
  for (const int outlier : {0, 1, 2, 10, 100}) {
    PassTime time(kBytes, 16);
    for (int i = 0; i < outlier + 4; ++i) {
      observe(time, {.rows = 1}, i == outlier || i == outlier + 1 ? 0.15 : 0.01);
    }
    EXPECT_NEAR(time.seconds({.rows = 1}), 0.01, 0.0012) << outlier;
  }
}

TEST(PassTime, FollowsAMachineThatSlowsDownOrSpeedsUp) {
  for (const double factor : {0.3, 0.7, 1.5, 4.0}) {
    PassTime time(kBytes, 16);
    Clock clock(4);
    for (int i = 0; i < 500; ++i) observe(time, {.rows = 1 + i % 4}, clock.measure(0.01));
    for (int i = 0; i < 20; ++i) observe(time, {.rows = 1 + i % 4}, clock.measure(0.01 * factor));
    EXPECT_NEAR(time.seconds({.rows = 2}) / (0.01 * factor), 1.02, 0.08) << factor;
    // What was not measured since follows.
    EXPECT_NEAR(time.seconds({.rows = 5}) / (0.01 * factor), 1.1, 0.25) << factor;
  }
}

TEST(PassTime, FollowsAContextThatGrows) {
  const Truth truth = [](const PassLoad& load) { return 0.004 + 3e-11 * load.kv_bytes; };
  PassTime time(kBytes, 16);
  Clock clock(5);
  for (int i = 0; i < 4000; ++i) {
    const PassLoad load{.rows = 1, .kv_bytes = 1e5 * i};
    ASSERT_TRUE(i <= 50 || error(time, load, truth) < 0.12) << i;
    observe(time, load, clock.measure(truth(load)));
  }
}

TEST(PassTime, BelievesWhatWasMeasuredBefore) {
  PassTime time(kBytes, 64);
  time.set_prior({.rows = 1}, 0.01);
  time.set_prior({.rows = 16}, 0.012);
  time.set_prior({.rows = 64}, 0.05);
  EXPECT_NEAR(time.seconds({.rows = 1}), 0.01, 0.0003);
  EXPECT_NEAR(time.seconds({.rows = 16}), 0.012, 0.0003);
  EXPECT_NEAR(time.seconds({.rows = 64}), 0.05, 0.001);
  EXPECT_LT(time.uncertainty({.rows = 16}), 0.02);
}

RC_GTEST_PROP(PassTime, NeverFallsWithRowsAndIsFinite, ()) {
  const int max_rows = *rc::gen::inRange(1, 1025);
  PassTime time(kBytes, max_rows);
  const int count = *rc::gen::inRange(0, 60);
  for (int i = 0; i < count; ++i) {
    const PassLoad load{.rows = *rc::gen::inRange(1, max_rows + 1),
                        .kv_bytes = 1e6 * *rc::gen::inRange(0, 1000)};
    observe(time, load, std::pow(10.0, *rc::gen::inRange(-50, 20) / 10.0));
  }
  double before = 0;
  for (int rows = 1; rows <= max_rows; ++rows) {
    const double seconds = time.seconds({.rows = rows});
    RC_ASSERT(std::isfinite(seconds) && seconds > 0 && seconds >= before * (1 - 1e-12));
    before = seconds;
  }
  RC_ASSERT(std::isfinite(time.uncertainty({.rows = max_rows, .kv_bytes = 1e6})));
  RC_ASSERT(time.kv_rate() > 0 && time.row_rate() > 0);
}

TEST(PassTime, IgnoresTimesThatAreNone) {
  PassTime time(kBytes, 16);
  observe(time, {.rows = 1}, 0.01);
  const double before = time.seconds({.rows = 1});
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double seconds : {0.0, -1.0, kInfinity, std::nan("")}) {
    observe(time, {.rows = 1}, seconds);
  }
  time.observe({}, 1.0);
  EXPECT_EQ(time.seconds({.rows = 1}), before);
}

TEST(PassTime, RefusesWhatIsNoPass) {
  EXPECT_THROW(PassTime(0, 4), Error);
  EXPECT_THROW(PassTime(1, 0), Error);
  PassTime time(1, 4);
  EXPECT_THROW(observe(time, {.rows = 5}, 1), Error);
  EXPECT_THROW(observe(time, {.rows = 0}, 1), Error);
}

}  // namespace
}  // namespace quantspec
