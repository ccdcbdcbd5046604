#include "engine/kept_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <string>

#include "base/expect_error.h"
#include "engine/test_support.h"
#include "speculative/speculative.h"

namespace quantspec {
namespace {

using ::testing::IsEmpty;
using Tokens = std::vector<TokenId>;

// Of so many tokens, from `first` on.
Tokens text(int count, TokenId first) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Tokens kBetween = {DecodingOptions::kBetweenTexts};
constexpr int kKnown = KeptTexts::kKnown;

TEST(KeptTexts, HaveAnOwnersTextsInTheirOrder) {
  KeptTexts kept(1000);
  EXPECT_THAT(kept.find(1, "a"), IsEmpty());
  const Tokens one = text(20, 100), two = text(30, 200);
  kept.keep(1, {"a", 7, one});
  kept.keep(1, {"a", 8, two});
  EXPECT_EQ(kept.find(1, "a"), one + kBetween + two);
  kept.keep(1, {"a", 9, text(KeptTexts::kLeastTokens - 1, 300)});  // too short
  EXPECT_EQ(kept.find(1, "a"), one + kBetween + two);
}

TEST(KeptTexts, AreSeenByNobodyElse) {
  KeptTexts kept(1000);
  kept.keep(1, {"a", 7, text(20, 100)});
  kept.keep(1, {"b", 7, text(20, 200)});
  kept.keep(2, {"a", 7, text(20, 300)});
  EXPECT_EQ(kept.find(1, "a"), text(20, 100));
  EXPECT_EQ(kept.find(1, "b"), text(20, 200));
  EXPECT_EQ(kept.find(2, "a"), text(20, 300));
  EXPECT_THAT(kept.find(2, "b"), IsEmpty());
  EXPECT_THAT(kept.find(1, ""), IsEmpty());
  // What other salts begin alike with stays, too.
  kept.keep(1, {"b", 7, text(40, 100)});
  EXPECT_EQ(kept.find(1, "a"), text(20, 100));
}

TEST(KeptTexts, OfASeedAreLeftOut) {
  KeptTexts kept(1000);
  kept.keep(1, {"", 7, text(20, 100)});
  kept.keep(1, {"", 8, text(20, 200)});
  EXPECT_EQ(kept.find(1, "", 7), text(20, 200));
  EXPECT_EQ(kept.find(1, "", 8), text(20, 100));
}

TEST(KeptTexts, ATextTakesThePlaceOfWhatItGoesOnWith) {
  KeptTexts kept(1000);
  kept.keep(1, {"", 7, text(40, 100)});
  kept.keep(1, {"", 7, text(90, 100)});
  EXPECT_EQ(kept.find(1, ""), text(90, 100));
  kept.keep(1, {"", 7, text(90, 100)});
  EXPECT_EQ(kept.find(1, ""), text(90, 100));
}

TEST(KeptTexts, WhatTextsBeginAlikeWithIsKeptOnce) {
  KeptTexts kept(1000);
  const Tokens alike = text(100, 100);
  kept.keep(1, {"", 7, alike + text(20, 500)});
  kept.keep(1, {"", 7, alike + text(20, 600)});
  EXPECT_EQ(kept.find(1, ""),
            text(kKnown, 200 - kKnown) + text(20, 500) + kBetween + alike + text(20, 600));
  // A shorter one, too.
  kept.keep(1, {"", 7, alike});
  EXPECT_EQ(kept.find(1, ""), text(kKnown, 200 - kKnown) + text(20, 500) + kBetween +
                                  text(kKnown, 200 - kKnown) + text(20, 600) + kBetween + alike);
}

TEST(KeptTexts, TheOldestTokensMakeRoom) {
  KeptTexts kept(100);
  kept.keep(1, {"", 7, text(60, 100)});
  kept.keep(1, {"other", 7, text(60, 200)});  // room is an owner's, whatever the salt
  EXPECT_EQ(kept.find(1, ""), text(40, 120));
  kept.keep(1, {"", 7, text(30, 300)});
  EXPECT_EQ(kept.find(1, ""), text(30, 300));  // of the first one too little was left
  EXPECT_EQ(kept.find(1, "other"), text(60, 200));
  kept.keep(1, {"", 7, text(500, 1000)});
  EXPECT_EQ(kept.find(1, ""), text(100, 1400));
  EXPECT_THAT(kept.find(1, "other"), IsEmpty());
}

TEST(KeptTexts, OwnersWhoCameLongAgoMakeRoom) {
  KeptTexts kept(100);
  const int most = KeptTexts::kMostOwners;
  for (int owner = 0; owner < most; ++owner) kept.keep(owner, {"", 7, text(20, owner)});
  EXPECT_EQ(kept.find(0, ""), text(20, 0));
  kept.keep(most, {"", 7, text(20, most)});
  EXPECT_THAT(kept.find(1, ""), IsEmpty());
  for (const int owner : {0, 2, most}) EXPECT_EQ(kept.find(owner, ""), text(20, owner));
}

TEST(KeptTexts, AreNoneOfNoTokens) {
  KeptTexts kept(0);
  kept.keep(1, {"", 7, text(500, 100)});
  EXPECT_THAT(kept.find(1, ""), IsEmpty());
}

// --- an engine's ---------------------------------------------------------------------------------

class LookupHistory : public ::testing::Test {
 protected:
  static EngineOptions options(int tokens) {
    EngineOptions options = bundled();
    options.plan = "lookup";
    options.lookup_history = tokens;
    return options;
  }
  // Drawn, so that it repeats nothing of itself. With a fixed draft length: the rule that chooses
  // one goes by the clock, and may look nothing up.
  static GenerateOptions drawn(OwnerId owner) {
    GenerateOptions options = greedy(100, 8);
    options.sampling.temperature = 1;
    options.sampling.seed = 11;
    options.spec_sampling = SpecSampling::kCoupled;
    options.owner = owner;
    return options;
  }
  static GenerateResult run(Engine& engine, const GenerateOptions& options) {
    std::promise<Outcome> ended;
    engine.submit("It was a dark and stormy night, and", options,
                  {.on_end = [&](Outcome outcome) { ended.set_value(std::move(outcome)); }});
    Outcome outcome = ended.get_future().get();
    if (outcome.error) throw Error(*outcome.error);
    return std::move(outcome.result);
  }
  static std::int64_t found(const GenerateResult& of) { return of.speculation.looked_up_accepted; }
};

TEST_F(LookupHistory, AnOwnersTextsAreLookedUpInAndNobodyElses) {
  const auto engine = Engine::load(options(1000));
  const GenerateResult first = run(*engine, drawn(1));
  const GenerateResult second = run(*engine, drawn(1));
  EXPECT_GT(found(second), 40);
  EXPECT_LT(found(first), 20);
  GenerateOptions salted = drawn(1);
  salted.salt = "another";
  const GenerateResult others = run(*engine, drawn(2)), hidden = run(*engine, salted);
  EXPECT_LT(found(others), 20);
  EXPECT_LT(found(hidden), 20);
  for (const GenerateResult* one : {&second, &others, &hidden})
    EXPECT_EQ(one->tokens, first.tokens);
  // What a request brings along is looked up in alone.
  GenerateOptions predicted = drawn(1);
  predicted.prediction = {5, 6, 7, 8};
  const GenerateResult own = run(*engine, predicted);
  EXPECT_LT(found(own), 20);
  EXPECT_EQ(own.tokens, first.tokens);
}

TEST_F(LookupHistory, NothingIsProposedThatFollowsFromTheSameDraws) {
  const auto engine = Engine::load(options(1000));
  GenerateOptions rejecting = drawn(1);
  rejecting.spec_sampling = SpecSampling::kRejection;
  EXPECT_LT(found(run(*engine, drawn(1))), 20);
  EXPECT_LT(found(run(*engine, rejecting)), 20);
  EXPECT_GT(found(run(*engine, drawn(1))), 40);
}

TEST_F(LookupHistory, IsNotOfWhoKeepsNothing) {
  const auto engine = Engine::load(options(1000));
  GenerateOptions passing = drawn(1);
  passing.to_folder = false;
  run(*engine, passing);
  EXPECT_LT(found(run(*engine, drawn(1))), 20);
}

TEST_F(LookupHistory, NeedsAPlanThatLooksUp) {
  EngineOptions none = options(1000);
  none.plan = "quantspec";
  const auto refused = [](const EngineOptions& options) {
    expect_error(ErrorKind::kInvalidRequest, {"lookup history"}, [&] { Engine::load(options); });
  };
  refused(none);
  refused(options(-1));
}

}  // namespace
}  // namespace quantspec
