#include "bench/entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

using testing::engine;

// "plan/draft length", with the budget where there is one.
std::vector<std::string> names(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    const std::optional<int>& len = entry.decoding.draft_len;
    names.push_back(entry.plan + (entry.budget ? "@" + std::to_string(*entry.budget) : "") + "/" +
                    (len ? std::to_string(*len) : "auto"));
  }
  return names;
}

BenchOptions options_of(std::vector<std::string> plans,
                        std::vector<std::optional<int>> draft_lens) {
  BenchOptions options;
  options.plans = std::move(plans);
  options.draft_lens = std::move(draft_lens);
  return options;
}

TEST(Entries, AreEveryCombinationAfterBothBaselines) {
  const auto entries =
      make_entries(engine(), options_of({"quantspec", "kv-only"}, {4, std::nullopt}), 512);
  EXPECT_EQ(names(entries),
            (std::vector<std::string>{"plain-fp16/0", "plain-int8/0", "quantspec/4",
                                      "quantspec/auto", "kv-only/4", "kv-only/auto"}));
  EXPECT_EQ(entries[0].store, KvStore::kFull);
  EXPECT_TRUE(entries[0].is_plain() && entries[1].is_plain() && !entries[2].is_plain());
}

TEST(Entries, EveryTemperatureHasItsOwnBaselines) {
  BenchOptions options = options_of({"quantspec"}, {4});
  options.temperatures = {1, 0};
  const auto entries = make_entries(engine(), options, 512);
  ASSERT_EQ(entries.size(), 6u);
  EXPECT_EQ(entries[3].plan, kPlainFp16);
  EXPECT_EQ(entries[2].decoding.sampling.temperature, 1);
  EXPECT_EQ(entries[3].decoding.sampling.temperature, 0);
}

TEST(Entries, OnlySparsePlansComeOnceForEachBudget) {
  BenchOptions options = options_of({"quantspec", "streaming"}, {4});
  options.draft_budgets = {64, 128};
  EXPECT_EQ(names(make_entries(engine(), options, 512)),
            (std::vector<std::string>{"plain-fp16/0", "plain-int8/0", "quantspec/4",
                                      "streaming@64/4", "streaming@128/4"}));
}

TEST(Entries, SharesOfTheContextAreWholePages) {
  BenchOptions options = options_of({"quantspec+sparse"}, {4});
  options.budget_shares = {64, 5, 2};
  EXPECT_EQ(names(make_entries(engine(), options, 512)),
            (std::vector<std::string>{"plain-fp16/0", "plain-int8/0", "quantspec+sparse@32/4",
                                      "quantspec+sparse@96/4", "quantspec+sparse@256/4"}));
}

TEST(Entries, AutoHasTheDraftLengthsThatAreAskedFor) {
  const auto entries = make_entries(engine(), options_of({"auto"}, {2, std::nullopt}), 512);
  EXPECT_EQ(names(entries),
            (std::vector<std::string>{"plain-fp16/0", "plain-int8/0", "auto/2", "auto/auto"}));
  EXPECT_GT(entries[2].decoding.plans.size(), 2u);
  EXPECT_FALSE(entries[2].is_fixed());
}

TEST(Entries, AutoHasTheBudgetsThatAreGiven) {
  BenchOptions options = options_of({"auto"}, {4});
  options.draft_budgets = {64, 128};
  const auto entries = make_entries(engine(), options, 512);
  EXPECT_EQ(names(entries),
            (std::vector<std::string>{"plain-fp16/0", "plain-int8/0", "auto@64/4", "auto@128/4"}));
  const std::vector<Plan>& plans = entries[3].decoding.plans;
  EXPECT_TRUE(plans.back().looks_up());
  EXPECT_EQ(plans[plans.size() - 2].layers[0].kv.budget, KvBudget(128));
}

TEST(Entries, AreNamedAlikeHoweverTheyWereTyped) {
  EXPECT_EQ(
      names(make_entries(engine(), options_of({"quantspec+w4", "quantspec+w8+sparse"}, {4}), 512))
          .back(),
      "quantspec+sparse+w8@128/4");
}

std::string refusal_of(const BenchOptions& options, int context = 512) {
  try {
    make_entries(engine(), options, context);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    return error.what();
  }
  return {};
}

TEST(Entries, APlanComesOnce) {
  EXPECT_EQ(refusal_of(options_of({"quantspec", "quantspec+w4"}, {4})),
            "plan quantspec+w4: the list has quantspec already");
  EXPECT_EQ(refusal_of(options_of({"all", "auto"}, {4})), "plan auto: the list has auto already");
  EXPECT_EQ(refusal_of(options_of({"all", "quantspec+wfull"}, {4})), "");
}

TEST(Entries, AllLeavesOutWhatTheContextCannotHold) {
  std::vector<LeftOut> left_out;
  const auto entries = make_entries(engine(), options_of({"all"}, {4}), 100, &left_out);
  // Budgets of 25 tokens are less than a page of 32, and than the 64 that the rivals need.
  ASSERT_EQ(left_out.size(), 13u);
  EXPECT_EQ(entries.size() + left_out.size(), all_bench_plans(6).size() + 2);
  EXPECT_EQ(left_out.back().plan, "quantspec+bounds+w8");
  EXPECT_EQ(describe(left_out).text(),
            "plan all leaves out: at 100 tokens streaming, streaming+w4, streaming+w8, snapkv, "
            "snapkv+w4, snapkv+w8, retrieval, retrieval+w4, retrieval+w8 (draft budget 1/4 "
            "is 25 tokens; from 64 to 99 tokens fit a context of 100); "
            "quantspec+sparse, quantspec+sparse+w8, quantspec+bounds, quantspec+bounds+w8 (draft "
            "budget 1/4 is 25 tokens; from 32 to 99 tokens fit a context of 100)");
  EXPECT_NE(refusal_of(options_of({"quantspec+sparse"}, {4}), 100), "");
  BenchOptions options = options_of({"all"}, {4});
  options.draft_budgets = {512};
  EXPECT_EQ(refusal_of(options).substr(0, 38), "draft budget 512: no plan can use it; ");
}

TEST(LeftOut, IsToldOnceForContextsOfTheSameReason) {
  const std::vector<LeftOut> left_out = {
      {100, "a", "why"}, {100, "b", "why"}, {200, "a", "why"}, {200, "b", "why"}, {200, "c", "no"}};
  EXPECT_EQ(describe(left_out).text(),
            "plan all leaves out: at 100, 200 tokens a, b (why); at 200 tokens c (no)");
  EXPECT_TRUE(describe({}).empty());
}

TEST(Entries, ABudgetThatNoPlanReadsByIsRefused) {
  BenchOptions options = options_of({"quantspec", "kv-only"}, {4});
  options.draft_budgets = {64, 128};
  EXPECT_EQ(refusal_of(options),
            "draft budget 64,128: none of the plans quantspec, kv-only reads by a budget; "
            "streaming, snapkv, retrieval, auto and plans with +sparse or +bounds do");
  options.plans.push_back("streaming");
  EXPECT_EQ(refusal_of(options), "");
  options = options_of({"quantspec"}, {4});
  EXPECT_EQ(refusal_of(options), "");
  options.budget_shares = {4, 8};
  EXPECT_EQ(refusal_of(options).substr(0, 15), "budget shares: ");
}

TEST(Entries, WhatMustRepeatIsKnown) {
  BenchOptions options = options_of({"quantspec"}, {4, std::nullopt});
  auto entries = make_entries(engine(), options, 512);
  EXPECT_TRUE(entries[2].is_fixed());
  EXPECT_FALSE(entries[3].is_fixed());
  EXPECT_FALSE(entries[2].is_lossless());
  options.spec_sampling = SpecSampling::kCoupled;
  entries = make_entries(engine(), options, 512);
  EXPECT_TRUE(entries[3].is_lossless());
}

TEST(Entries, AllPlansAreKnownToTheEngine) {
  const auto plans = all_bench_plans(engine().config().num_layers);
  EXPECT_EQ(std::set(plans.begin(), plans.end()).size(), plans.size());
  EXPECT_EQ(plans.back(), "auto");
  EXPECT_EQ(make_entries(engine(), options_of(plans, {4}), 512).size(), plans.size() + 2);
}

TEST(RunOrder, IsEveryEntryOnceAndStartsElsewhereEachTime) {
  EXPECT_EQ(run_order(3, 0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(run_order(3, 1), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(run_order(3, 5), (std::vector<int>{2, 0, 1}));
}

}  // namespace
}  // namespace quantspec::bench
