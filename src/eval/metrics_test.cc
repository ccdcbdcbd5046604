#include "eval/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quantspec {
namespace {

std::vector<float> logs(std::initializer_list<double> probs) {
  std::vector<float> logits;
  for (const double p : probs) logits.push_back(static_cast<float>(std::log(p)) + 3);
  return logits;
}

TEST(Metrics, EqualDistributionsDoNotDiverge) {
  const Distribution d(std::vector<float>{1.5f, -2, 0.25f, 30});
  const Score score = compare(d, d, 2);
  EXPECT_EQ(score.kl, 0);
  EXPECT_NEAR(score.overlap, 1, 1e-15);
  EXPECT_TRUE(score.agrees);
  EXPECT_EQ(score.nll, d.nll(2));
}

TEST(Metrics, DivergenceByHand) {
  const Distribution p(logs({0.5, 0.25, 0.25})), q(logs({0.25, 0.25, 0.5}));
  const Score score = compare(p, q, 2);
  EXPECT_NEAR(score.kl, 0.5 * std::log(2) - 0.25 * std::log(2), 1e-6);  // fp32 logits
  EXPECT_NEAR(score.overlap, 0.75, 1e-6);
  EXPECT_FALSE(score.agrees);
  EXPECT_NEAR(score.nll, std::log(2), 1e-6);
}

TEST(Metrics, LargeLogitsAreHarmless) {
  const Distribution d(std::vector<float>{1e4f, 1e4f, -1e4f});
  EXPECT_NEAR(d.nll(0), std::log(2), 1e-12);
  EXPECT_EQ(d.probs()[2], 0);
  EXPECT_EQ(d.top(), 0);
  EXPECT_EQ(compare(d, d, 0).kl, 0);
}

TEST(Metrics, TheErrorIsThatOfTheGroups) {
  // Means 1 and 3 of equal groups: standard deviation sqrt(2), over sqrt(2) groups.
  const GroupSum equal[] = {{4, 4}, {12, 4}};
  EXPECT_DOUBLE_EQ(mean_over(equal).value, 2);
  EXPECT_DOUBLE_EQ(mean_over(equal).error, 1);
  const GroupSum one[] = {{4, 4}};
  EXPECT_DOUBLE_EQ(mean_over(one).value, 1);
  EXPECT_TRUE(std::isnan(mean_over(one).error));
  const GroupSum unequal[] = {{2, 2}, {12, 6}};
  EXPECT_DOUBLE_EQ(mean_over(unequal).value, 14.0 / 8);
  EXPECT_EQ(mean_over(unequal).of_groups, (std::vector<double>{1, 2}));
}

TEST(Metrics, AGroupWithoutValuesHasItsPlaceAndNoSay) {
  const GroupSum with_none[] = {{4, 4}, {0, 0}, {12, 4}};
  const Mean mean = mean_over(with_none);
  EXPECT_DOUBLE_EQ(mean.value, 2);
  EXPECT_DOUBLE_EQ(mean.error, 1);
  ASSERT_EQ(mean.of_groups.size(), 3u);
  EXPECT_TRUE(std::isnan(mean.of_groups[1]));
  EXPECT_EQ(mean.of_groups[2], 3);
}

TEST(Metrics, QuantileIsAValue) {
  std::vector<double> values;
  for (int i = 1; i <= 100; ++i) values.push_back(101 - i);
  EXPECT_EQ(quantile(values, 0.99), 99);
  EXPECT_EQ(quantile(values, 1), 100);
  EXPECT_EQ(quantile({5}, 0.99), 5);
}

TEST(Metrics, ASummaryIsOfItsPositions) {
  std::vector<std::vector<Score>> groups(2, std::vector<Score>(4));
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t i = 0; i < 4; ++i) {
      groups[g][i] = {1.0 * i, 10.0 * g + i, 0.5, i % 2 == 0};
    }
  }
  const ScoreSummary all = summarize(groups), late = summarize(groups, 2, 9);
  EXPECT_EQ(all.tokens, 8);
  EXPECT_DOUBLE_EQ(all.nll.value, 1.5);
  EXPECT_DOUBLE_EQ(all.kl.value, 6.5);
  EXPECT_DOUBLE_EQ(all.kl_p99, 13);
  EXPECT_DOUBLE_EQ(all.acceptance.value, 0.5);
  EXPECT_DOUBLE_EQ(all.agreement.value, 0.5);
  EXPECT_EQ(late.tokens, 4);
  EXPECT_DOUBLE_EQ(late.nll.value, 2.5);
  EXPECT_EQ(all.tokens_of_groups, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(all.kl.of_groups, (std::vector<double>{1.5, 11.5}));
  groups[0].resize(2);
  EXPECT_EQ(summarize(groups, 2, 9).tokens_of_groups, (std::vector<std::int64_t>{0, 2}));
}

TEST(Metrics, AChangeIsTakenGroupByGroup) {
  // Groups that differ much, and in both a change of 0.1 and a bit: its error is small.
  const std::vector<std::vector<Score>> from = {{{.overlap = 0.2}, {.overlap = 0.3}},
                                                {{.overlap = 0.8}, {.overlap = 0.9}}};
  const std::vector<std::vector<Score>> to = {{{.overlap = 0.3}, {.overlap = 0.4}},
                                              {{.overlap = 0.9}, {.overlap = 1.02}}};
  const Mean change = mean_change(from, to, &Score::overlap);
  EXPECT_NEAR(change.value, 0.105, 1e-12);
  EXPECT_NEAR(change.error, 0.005, 1e-12);
  EXPECT_DOUBLE_EQ(mean_change(from, to, &Score::kl).value, 0);
}

}  // namespace
}  // namespace quantspec
