#include "bench/summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

constexpr int kTokens = 10;

// `accepted` of `drafted` tokens, in two rounds.
Run run(double seconds, int drafted = 0, int accepted = 0) {
  Run run;
  run.seconds = seconds;
  run.tokens.assign(kTokens, 7);
  run.stats.rounds = 2;
  run.stats.drafted = drafted;
  run.stats.accepted = accepted;
  run.stats.rejections = drafted > accepted;
  run.stats.drafted_at[0] = drafted;
  run.stats.accepted_at[0] = accepted;
  run.stats.draft_seconds = seconds / 2;
  run.stats.verify_seconds = seconds / 4;
  return run;
}

// plain-fp16, plain-int8 and one with two plans: two repeats on two prompts.
class Rows : public ::testing::Test {
 protected:
  Rows() {
    BenchOptions options = testing::small_bench();
    options.plans = {"auto"};
    entries_ = make_entries(testing::engine(), options, 512);
    measured_ = {
        {{{run(1), run(3)}, {run(4), run(4)}}, {100, 300}, {}},
        {{{run(1), run(1)}, {run(1), run(1)}}, {100, 200}, {}},
        {{{run(1, 8, 4), run(1, 8, 6)}, {run(0.5, 8, 8), run(0.5, 8, 2)}}, {100, 200}, {}},
    };
    for (auto& repeat : measured_[2].repeats) {
      for (bench::Run& each : repeat) each.rounds_by_plan.resize(entries_[2].decoding.plans.size());
    }
    options.predict = kTokens;
    options_ = options;
  }
  std::vector<BenchRow> rows() const {
    return make_rows(entries_, measured_, options_, 512,
                     {*options_.machine, testing::engine().config(), 64});
  }

  std::vector<Entry> entries_;
  std::vector<Measured> measured_;
  BenchOptions options_;
};

TEST(SpreadOf, IsTheMiddleOrTheMeanOfTheTwo) {
  const Spread odd = spread_of({3, 1, 2});
  EXPECT_EQ((std::vector{odd.median, odd.min, odd.max}), (std::vector<double>{2, 1, 3}));
  EXPECT_EQ(spread_of({4, 1, 2, 3}).median, 2.5);
}

TEST(SpreadOf, KeepsTheValuesInTheirOrder) {
  EXPECT_EQ(spread_of({3, 1, 2}).values, (std::vector<double>{3, 1, 2}));
}

TEST_F(Rows, ARepeatIsOneRunOverAllPrompts) {
  const BenchRow row = rows()[0];  // 20 tokens in 4 s, then in 8 s
  EXPECT_DOUBLE_EQ(row.ms_per_token.min, 200);
  EXPECT_DOUBLE_EQ(row.ms_per_token.median, 300);
  EXPECT_DOUBLE_EQ(row.decode_tokens_per_second.max, 5);
  EXPECT_DOUBLE_EQ(row.tokens_per_round.median, 5);
  EXPECT_DOUBLE_EQ(row.draft_ms.min, 500);   // 2 s in 4 rounds
  EXPECT_DOUBLE_EQ(row.verify_ms.max, 500);  // 2 s in 4 rounds
  EXPECT_DOUBLE_EQ(row.prefill_ms.median, 200);
  EXPECT_EQ(row.prompts, 2);
  EXPECT_EQ(row.repeats, 2);
  EXPECT_EQ(row.ms_per_token.values, (std::vector<double>{200, 400}));
  EXPECT_EQ(row.prefill_ms.values, (std::vector<double>{100, 300}));
}

TEST_F(Rows, SpeedUpsAreTakenWithinARepeat) {
  const auto rows = this->rows();
  for (const Spread& own : {rows[0].speedup_fp16, rows[1].speedup_int8}) {
    EXPECT_EQ((std::vector{own.median, own.min, own.max}), (std::vector<double>{1, 1, 1}));
  }
  EXPECT_DOUBLE_EQ(rows[2].speedup_fp16.min, 2);  // 4 s over 2 s
  EXPECT_DOUBLE_EQ(rows[2].speedup_fp16.max, 8);  // 8 s over 1 s
  EXPECT_DOUBLE_EQ(rows[2].speedup_int8.median, 1.5);
  EXPECT_EQ(rows[2].speedup_fp16.values, (std::vector<double>{2, 8}));
}

TEST_F(Rows, AcceptanceIsOfAllRunsAndItsSpreadOfSingleOnes) {
  const auto rows = this->rows();
  EXPECT_FALSE(rows[0].acceptance_rate || rows[1].acceptance_per_token);
  EXPECT_TRUE(rows[0].accepted_per_position.empty());
  ASSERT_TRUE(rows[2].acceptance_rate);
  EXPECT_DOUBLE_EQ(rows[2].acceptance_rate->median, 20.0 / 32);
  EXPECT_DOUBLE_EQ(rows[2].acceptance_rate->min, 0.25);
  EXPECT_DOUBLE_EQ(rows[2].acceptance_rate->max, 1);
  EXPECT_EQ(rows[2].acceptance_rate->values, (std::vector<double>{0.5, 0.75, 1, 0.25}));
  EXPECT_DOUBLE_EQ(rows[2].acceptance_per_token->median, 20.0 / 23);
  EXPECT_EQ(rows[2].accepted_per_position, std::vector<double>{20.0 / 32});
  EXPECT_DOUBLE_EQ(rows[2].draft_len_mean, 4);
}

TEST_F(Rows, ARunThatDraftedNothingHasNoAcceptanceAndItsPlace) {
  measured_[2].repeats[0][1].stats = run(1).stats;
  const auto rows = this->rows();
  const std::vector<double>& values = rows[2].acceptance_rate->values;
  ASSERT_EQ(values.size(), 4u);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 1);
  EXPECT_EQ(rows[2].acceptance_rate->min, 0.25);
}

TEST_F(Rows, TheChosenPlanDraftedMostRoundsAndMoreThanNone) {
  EXPECT_EQ(rows()[2].chosen_plan, "");
  measured_[2].repeats[0][0].rounds_by_plan[1] = 2;
  measured_[2].repeats[0][1].rounds_by_plan[0] = 1;
  EXPECT_EQ(rows()[2].chosen_plan, "");  // 5 of the 8 rounds were plain
  measured_[2].repeats[1][0].rounds_by_plan[1] = 2;
  EXPECT_EQ(rows()[2].chosen_plan, entries_[2].decoding.plans[1].name);
}

TEST_F(Rows, TheHashIsOfTheTokens) {
  const auto before = rows();
  EXPECT_EQ(before[0].tokens_hash, before[1].tokens_hash);
  measured_[1].repeats[0][1].tokens[3] = 8;
  EXPECT_NE(rows()[1].tokens_hash, before[1].tokens_hash);
}

}  // namespace
}  // namespace quantspec::bench
