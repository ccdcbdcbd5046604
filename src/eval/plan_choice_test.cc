#include "eval/plan_choice.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace quantspec {
namespace {

using Parts = std::vector<std::vector<Setting>>;

double kl_of(const Parts& parts, const std::vector<std::size_t>& chosen) {
  double kl = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) kl += parts[i][chosen[i]].kl;
  return kl;
}
std::size_t bytes_of(const Parts& parts, const std::vector<std::size_t>& chosen) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) bytes += parts[i][chosen[i]].bytes;
  return bytes;
}

TEST(PlanChoice, TheSensitivePartGetsTheBytes) {
  const Parts parts = {{{0.1, 10}, {0.0, 20}}, {{0.5, 10}, {0.0, 20}}};
  EXPECT_EQ(*choose_settings(parts, 30), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(*choose_settings(parts, 40), (std::vector<std::size_t>{1, 1}));
  EXPECT_EQ(*choose_settings(parts, 20), (std::vector<std::size_t>{0, 0}));
}

TEST(PlanChoice, NothingFitsLessThanTheCheapest) {
  EXPECT_FALSE(choose_settings({{{0.1, 10}, {0.0, 20}}}, 9).has_value());
}

// By KL per byte the small step comes first, and leaves no room for the one that saves most.
TEST(PlanChoice, AnExchangeUndoesAGreedyStep) {
  const Parts parts = {{{0.2, 0}, {0.0, 1}}, {{1.0, 0}, {0.0, 10}}};
  EXPECT_EQ(*choose_settings(parts, 10), (std::vector<std::size_t>{0, 1}));
}

TEST(PlanChoice, NoWorseThanWhatIsKnown) {
  // Three parts whose best settings are reached by no single step or exchange.
  const Parts parts = {{{1.0, 0}, {0.9, 3}, {0.0, 10}},
                       {{1.0, 0}, {0.5, 4}, {0.4, 7}},
                       {{1.0, 0}, {0.5, 4}, {0.4, 6}}};
  const std::vector<std::size_t> known = {2, 0, 0};
  EXPECT_LE(kl_of(parts, *choose_settings(parts, 10, known)), kl_of(parts, known));
}

TEST(PlanChoice, NearTheBestOfAllOnSmallCases) {
  std::mt19937 random(7);
  double chosen_kl = 0, best_kl = 0;
  for (int trial = 0; trial < 200; ++trial) {
    Parts parts(5);
    for (auto& part : parts) {
      for (int i = 0; i < 3; ++i) {
        part.push_back({static_cast<double>(random() % 1000), random() % 100});
      }
    }
    constexpr std::size_t kBudget = 250;
    const auto chosen = choose_settings(parts, kBudget);
    double best = -1;
    for (std::size_t code = 0; code < 243; ++code) {
      std::vector<std::size_t> all;
      for (std::size_t i = 0, rest = code; i < 5; ++i, rest /= 3) all.push_back(rest % 3);
      if (bytes_of(parts, all) > kBudget) continue;
      const double kl = kl_of(parts, all);
      if (best < 0 || kl < best) best = kl;
    }
    ASSERT_EQ(chosen.has_value(), best >= 0);
    if (!chosen) continue;
    EXPECT_LE(bytes_of(parts, *chosen), kBudget);
    EXPECT_GE(kl_of(parts, *chosen), best);
    chosen_kl += kl_of(parts, *chosen);
    best_kl += best;
  }
  EXPECT_LT(chosen_kl, 1.02 * best_kl);
}

}  // namespace
}  // namespace quantspec
