// DraftLengths on simulated machines, beside the best lengths by their true times and acceptance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "speculative/draft_lengths.h"
#include "speculative/test_support.h"

namespace quantspec {
namespace {

constexpr int kSeeds = 5;

auto accepts(double share) {
  return [share](int, double) { return share; };
}
// Sequences from 0.5 to 0.98.
double mixed(int sequence, double) { return 0.98 - 0.08 * (sequence * 5 % 7); }

// At the shape of an 8B model with bf16 weights, bound by memory until some hundred rows: 4- and
// 8-bit weights, and a quarter of the pages.
Machine gpu() {
  const auto rows = [](double at_one, int free) {
    return [=](int rows) { return at_one * (1 + 0.002 * rows + std::max(0, rows - free) / 250.0); };
  };
  return {.target_bytes = 16e9,
          .token_bytes = 65e3,
          .plan_bytes = {4.5e9, 8.5e9, 4.5e9},
          .verify = rows(4.2e-3, 128),
          .kv_seconds = 1.8e-8,
          .row_kv_seconds = 3e-10,
          .plans = {{rows(1.4e-3, 64), 1.8e-8, 0.52, mixed, 0.88f},
                    {rows(2.4e-3, 64), 1.8e-8, 0.52, accepts(0.96), 0.97f},
                    {rows(1.5e-3, 64), 1.8e-8, 0.13, accepts(0.88), 0.85f}}};
}
// A small model on two cores: bound by computing from about 8 rows on.
Machine cpu() {
  const auto rows = [](double at_one, double each) {
    return [=](int rows) { return std::max(at_one, each * rows) + 0.2 * each * rows; };
  };
  return {.target_bytes = 48e6,
          .token_bytes = 2300,
          .plan_bytes = {14e6, 26e6},
          .verify = rows(5e-3, 0.6e-3),
          .kv_seconds = 2.4e-7,
          .row_kv_seconds = 0.6e-8,
          .plans = {{rows(2.0e-3, 0.5e-3), 2.4e-7, 0.52, accepts(0.88), 0.88f},
                    {rows(3.1e-3, 0.5e-3), 2.4e-7, 0.52, mixed, 0.97f}}};
}
Machine never_pays() {
  Machine machine = cpu();
  for (SimPlan& plan : machine.plans) plan.acceptance = accepts(0.3);
  return machine;
}
// Rows are free within tiles.
Machine tiles() {
  Machine machine = gpu();
  machine.verify = [](int rows) { return 4.2e-3 * (1 + 0.25 * ((rows - 1) / 16)); };
  return machine;
}
// Drafts read all weights, and a fifth of the cache.
Machine pays_at_long_context() {
  Machine machine = gpu();
  machine.plan_bytes = {16e9};
  machine.plans = {{machine.verify, 1.8e-8, 0.2, accepts(0.9), 0.97f}};
  return machine;
}
// More rows than one take a step, and then little.
Machine steps() {
  Machine machine{.target_bytes = 48e6, .token_bytes = 1, .plan_bytes = {14e6, 26e6, 48e6}};
  machine.verify = [](int rows) {
    return rows == 1 ? 10e-3 : rows <= 5 ? 14e-3 : 15e-3 + 1e-3 * (rows > 9);
  };
  const auto takes = [](double seconds) { return [=](int) { return seconds; }; };
  machine.plans = {{takes(4e-3), 0, 1, accepts(0.90), 0.88f},
                   {takes(4.5e-3), 0, 1, accepts(0.93), 0.97f},
                   {takes(8e-3), 0, 1, accepts(0.97), 0.97f}};
  return machine;
}
// The cache comes to dominate: 4-bit weights stop being worth their acceptance.
Machine growing() {
  const auto takes = [](double seconds) { return [=](int) { return seconds; }; };
  return {.target_bytes = 48e6,
          .token_bytes = 8e3,
          .plan_bytes = {14e6, 26e6, 48e6},
          .verify = [](int rows) { return 6e-3 * (0.9 + 0.1 * rows); },
          .kv_seconds = 1e-6,
          .row_kv_seconds = 3e-8,
          .plans = {{takes(1.5e-3), 5e-7, 0.5, accepts(0.80), 0.88f},
                    {takes(3e-3), 5e-7, 0.5, accepts(0.96), 0.97f},
                    {takes(6e-3), 5e-7, 0.5, accepts(0.97), 0.97f}}};
}
// Drafts are accepted, and take nearly as long as verification.
Machine too_slow() {
  Machine machine = steps();
  machine.verify = [](int rows) { return 9e-3 + 1e-3 * rows; };
  double seconds = 7.5e-3;
  for (SimPlan& plan : machine.plans) {
    plan.pass = [seconds](int) { return seconds; };
    plan.acceptance = accepts(0.6);
    seconds += 1e-3;
  }
  return machine;
}
// As measured with a 24M-parameter model at 31.5k tokens: dense and sparse, 4- and 8-bit weights.
Machine seven_plans() {
  Machine machine{.target_bytes = 48e6, .token_bytes = 1, .kv_seconds = 0, .row_kv_seconds = 0};
  machine.verify = [](int rows) { return 7.7e-3 + 0.75e-3 * (rows - 1); };
  const std::vector<double> seconds = {4.1e-3, 5.1e-3, 8.2e-3, 1.38e-3, 1.47e-3, 0.85e-3, 1.0e-3};
  const std::vector<double> accepted = {0.88, 0.985, 0.99, 0.87, 0.965, 0.85, 0.95};
  const std::vector<float> usual = {0.88f, 0.97f, 0.97f, 0.85f, 0.94f, 0.85f, 0.94f};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    machine.plan_bytes.push_back(i % 2 == 0 ? 14e6 : 26e6);
    machine.plans.push_back({[s = seconds[i]](int rows) { return s * (0.8 + 0.2 * rows); }, 0, 0.5,
                             accepts(accepted[i]), usual[i]});
  }
  return machine;
}

struct Load {
  int sequences;
  double shortest, longest;  // context
};

Simulation start(const Machine& machine, const Load& load, std::uint64_t seed, double noise = 0.03,
                 double outliers = 0.02) {
  Simulation simulation(machine, seed, noise, outliers);
  for (int i = 0; i < load.sequences; ++i) {
    const double along = (i * 7 % load.sequences + 0.5) / load.sequences;
    simulation.add(load.shortest + (load.longest - load.shortest) * along);
  }
  return simulation;
}

// Tokens a second, by the machine's true times, to those of the best lengths and of plain decoding.
struct Shares {
  double of_best, of_plain;
};
Shares shares(const Machine& machine, const Load& load, int warm_up, int rounds,
              double noise = 0.03, double outliers = 0.02) {
  double ours = 0, best = 0, plain = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Simulation run = start(machine, load, seed, noise, outliers);
    run.run(warm_up);
    Simulation other = run, third = run;
    ours += 1 / run.run(rounds).rate();
    best += 1 / other.best(rounds).rate();
    plain += 1 / third.plain(rounds).rate();
  }
  return {best / ours, plain / ours};
}

struct Case {
  const char* name;
  Machine machine;
};
std::vector<Case> machines() {
  return {{"gpu", gpu()},
          {"cpu", cpu()},
          {"tiles", tiles()},
          {"never pays", never_pays()},
          {"pays at long context", pays_at_long_context()}};
}

// Measured: 0.98 to 1.02 of the best (contexts grow apart from those that the best lengths decode),
// at least 0.983 of plain decoding.
TEST(DraftLengthsMachines, ComesNearTheBestLengths) {
  for (const auto& [name, machine] : machines()) {
    for (const int sequences : {1, 8, 64}) {
      for (const double context : {2000, 32000}) {
        const Shares share = shares(machine, {sequences, context / 2, context}, 200, 600);
        EXPECT_GT(share.of_best, 0.95) << name << ' ' << sequences << ' ' << context;
        EXPECT_GT(share.of_plain, 0.97) << name << ' ' << sequences << ' ' << context;
      }
    }
  }
}

// One sequence, exploration included. Measured: 0.87 (steps, where the first drafts of one and two
// tokens cost more than they yield) to 0.98 of the best in 80 rounds, 0.97 to 0.99 in 300; 0.97 to
// 0.98 of plain decoding.
TEST(DraftLengthsMachines, ComesNearTheBestFromTheFirstRoundOn) {
  for (const auto& [name, machine] : std::vector<Case>{
           {"gpu", gpu()}, {"cpu", cpu()}, {"steps", steps()}, {"growing", growing()}}) {
    const double at_once = shares(machine, {1, 4096, 4096}, 0, 80).of_best;
    const double soon = shares(machine, {1, 4096, 4096}, 0, 300).of_best;
    EXPECT_GT(at_once, 0.84) << name;
    EXPECT_GT(soon, 0.95) << name;
  }
  for (const auto& [name, machine] :
       std::vector<Case>{{"never pays", never_pays()}, {"too slow", too_slow()}}) {
    const double at_once = shares(machine, {1, 4096, 4096}, 0, 300).of_plain;
    const double soon = shares(machine, {1, 4096, 4096}, 0, 1000).of_plain;
    EXPECT_GT(at_once, 0.95) << name;
    EXPECT_GT(soon, 0.97) << name;
  }
}

// The first 96 tokens of an engine's first request, its passes timed, to those of the best of its
// plans when that is the only one, and of plain decoding.
Shares first_tokens(const Machine& machine, double context) {
  constexpr int kTokens = 96, kRequests = 40;
  const auto seconds = [&](const Machine& of, bool plain) {
    double sum = 0;
    for (int seed = 0; seed < kRequests; ++seed) {
      Simulation run = start(of, {1, context, context}, seed);
      run.time_passes();
      sum += 1 / (plain ? run.plain(kTokens) : run.run_tokens(kTokens)).rate();
    }
    return sum;
  };
  double best = INFINITY;
  for (std::size_t plan = 0; plan < machine.plans.size(); ++plan) {
    Machine one = machine;
    one.plan_bytes = {machine.plan_bytes[plan]};
    one.plans = {machine.plans[plan]};
    best = std::min(best, seconds(one, false));
  }
  const double ours = seconds(machine, false);
  return {best / ours, seconds(machine, true) / ours};
}

// Measured: 0.965 (a sequence of which 4-bit weights foretell far more than usual) to 1.03 of the
// best plan, and 1.31 to 2.5 times plain decoding; where drafts do not pay, 0.945 to 0.996 of it.
TEST(DraftLengthsMachines, FirstTokensAreNearTheBestPlans) {
  for (const auto& [name, machine] : std::vector<Case>{{"gpu", gpu()},
                                                       {"cpu", cpu()},
                                                       {"tiles", tiles()},
                                                       {"steps", steps()},
                                                       {"growing", growing()},
                                                       {"seven plans", seven_plans()}}) {
    for (const double context : {4096, 16384}) {
      const Shares share = first_tokens(machine, context);
      EXPECT_GT(share.of_best, 0.94) << name << ' ' << context;
      EXPECT_GT(share.of_plain, 1.25) << name << ' ' << context;
    }
  }
  for (const auto& [name, machine] : std::vector<Case>{
           {"long", pays_at_long_context()}, {"never", never_pays()}, {"slow", too_slow()}}) {
    EXPECT_GT(first_tokens(machine, 4096).of_plain, 0.94) << name;
  }
}

// Short and long sequences in one batch. Measured: 0.96 to 1.01 of the best, at least 0.978 of
// plain decoding.
TEST(DraftLengthsMachines, MixedBatchesAndNoisyClocks) {
  struct Clock {
    double noise, outliers;
  };
  for (const auto& [name, machine] : machines()) {
    for (const auto& [noise, outliers] : {Clock{0, 0}, {0.15, 0.1}, {0.4, 0.02}}) {
      const Shares share = shares(machine, {32, 1000, 16000}, 200, 600, noise, outliers);
      EXPECT_GT(share.of_best, 0.95) << name << ' ' << noise;
      EXPECT_GT(share.of_plain, 0.97) << name << ' ' << noise;
    }
  }
}

// Measured: 0.98 of the 600 rounds after 200.
TEST(DraftLengthsMachines, TellsManyPlansApart) {
  EXPECT_GT(shares(seven_plans(), {1, 4000, 4000}, 200, 600).of_best, 0.95);
}

// Whatever the clock says, what is lost to probes is what was meant to be: measured, 1.2%.
TEST(DraftLengthsMachines, ProbesLoseLittle) {
  for (const int sequences : {1, 16, 64}) {
    EXPECT_GT(shares(never_pays(), {sequences, 4000, 4000}, 200, 2000, 0, 0).of_plain, 0.98);
  }
}

// Measured: the first 200 rounds lose the time of 7 to 11 plain ones, 2 of them to probes.
TEST(DraftLengthsMachines, WarmUpLosesLittle) {
  for (const int sequences : {1, 8, 32, 64}) {
    double lost = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Simulation run = start(never_pays(), {sequences, 1000, 4000}, seed);
      const double plain = run.plain(10).rate();
      const Tally tally = run.run(200);
      lost += (tally.seconds * plain - tally.tokens) / sequences / kSeeds;
    }
    EXPECT_LT(lost, 12) << sequences;
  }
}

// Measured, from the 31st round after every change on: 0.94 to 1.01 of the best, 0.985 to 1.00 over
// all loads, and at least 0.988 of plain decoding.
TEST(DraftLengthsMachines, FollowsTheLoad) {
  for (const auto& [name, machine] : machines()) {
    double ours = 0, best = 0, plain = 0;
    Simulation run = start(machine, {1, 4000, 4000}, 1);
    run.run(200);
    for (const int sequences : {32, 1, 32, 8, 64, 1}) {
      run.resize(sequences, 6000);
      run.run(30);
      Simulation other = run, third = run;
      const double here = run.run(300).rate();
      const double there = other.best(300).rate();
      EXPECT_GT(here / there, 0.9) << name << ' ' << sequences;
      ours += sequences / here, best += sequences / there,
          plain += sequences / third.plain(300).rate();
    }
    EXPECT_GT(best / ours, 0.95) << name;
    EXPECT_GT(plain / ours, 0.97) << name;
  }
}

void set_acceptance(Simulation& run, double share) {
  for (SimPlan& plan : run.machine().plans) plan.acceptance = accepts(share);
}

TEST(DraftLengthsMachines, SwitchesOffAndOnAgainWithTheText) {
  for (const int sequences : {1, 16}) {
    for (int seed = 0; seed < kSeeds; ++seed) {
      Simulation run = start(gpu(), {sequences, 8000, 8000}, seed);
      set_acceptance(run, 0.95);
      run.run(400);
      EXPECT_FALSE(run.lengths().off()) << sequences;
      set_acceptance(run, 0.05);
      run.run(100);
      EXPECT_TRUE(run.lengths().off()) << sequences;
      EXPECT_NE(run.lengths().explain().find("does not pay"), std::string::npos);
      run.run(600);
      set_acceptance(run, 0.95);
      run.run(1500);
      EXPECT_FALSE(run.lengths().off()) << sequences;
    }
  }
}

// Clocks of the machine go down, then other passes slow down than those that were chosen.
TEST(DraftLengthsMachines, FollowsTheMachine) {
  for (const int sequences : {1, 16}) {
    Simulation run = start(gpu(), {sequences, 8000, 8000}, 3);
    run.run(300);
    for (SimPlan& plan : run.machine().plans) {
      plan.pass = [pass = plan.pass](int rows) { return 6 * pass(rows); };
      plan.kv_seconds *= 6;
    }
    run.run(150);
    EXPECT_TRUE(run.lengths().off()) << sequences;
    run.machine() = gpu();
    run.run(1500);
    EXPECT_FALSE(run.lengths().off()) << sequences;
    Simulation other = run;
    EXPECT_GT(run.run(400).rate(), 0.95 * other.best(400).rate()) << sequences;
  }
}

TEST(DraftLengthsMachines, IsDeterministic) {
  Simulation a = start(cpu(), {8, 1000, 9000}, 5), b = a;
  EXPECT_EQ(a.run(500).seconds, b.run(500).seconds);
  EXPECT_EQ(a.lengths().explain(), b.lengths().explain());
}

}  // namespace
}  // namespace quantspec
