#include "speculative/draft_lengths.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "speculative/draft_lengths_test_support.h"

namespace quantspec {

class Aged {
 public:
  // As after so many rounds, lanes and probes, of which nothing else is left.
  static void age(DraftLengths& lengths, std::int64_t rounds) {
    lengths.round_ += rounds;
    lengths.probe_.last_round += rounds;
    lengths.probe_.next += rounds;
    lengths.probe_.next_lane += rounds;
  }
  static std::int64_t rounds_since_probe(const DraftLengths& lengths) {
    return lengths.round_ - lengths.probe_.last_round;
  }
};

namespace {

using Batch = DraftBatch;

TEST(DraftLengths, DraftsLongWhereAllIsAccepted) {
  Batch batch(4, {1e-3});
  batch.rounds(200, kMaxDraftLen);
  EXPECT_FALSE(batch.lengths.off());
  for (const int length : batch.rounds(1, kMaxDraftLen).lengths) EXPECT_GT(length, 6);
  EXPECT_NE(batch.lengths.explain().find("plan0"), std::string::npos);
  EXPECT_NE(batch.lengths.explain().find("plain decoding"), std::string::npos);
}

TEST(DraftLengths, IsOffWhereNothingIsAccepted) {
  Batch batch(4, {1e-3, 2e-3});
  EXPECT_NE(batch.lengths.explain().find("still measuring"), std::string::npos);
  batch.rounds(100, 0);
  EXPECT_TRUE(batch.lengths.off());
  int drafting = 0;
  for (int i = 0; i < 200; ++i) drafting += batch.rounds(1, 0).drafts();
  EXPECT_GT(drafting, 0);  // probes
  EXPECT_LT(drafting, 14);
  EXPECT_NE(batch.lengths.explain().find("does not pay"), std::string::npos);
}

TEST(DraftLengths, GivesEverySequenceItsOwnLength) {
  Batch batch(8, {1e-3});
  Batch::Round last;
  for (int i = 0; i < 300; ++i) {
    last = batch.round([](std::size_t s) { return s % 2 == 0 ? kMaxDraftLen : 0; });
  }
  int usual = 0;
  for (int i = 0; i < 20; ++i) {
    last = batch.round([](std::size_t s) { return s % 2 == 0 ? kMaxDraftLen : 0; });
    bool as_expected = true;
    for (std::size_t s = 0; s < 8; ++s) as_expected &= (last.lengths[s] > 3) == (s % 2 == 0);
    usual += as_expected;
  }
  EXPECT_GE(usual, 17);  // but for probes
}

TEST(DraftLengths, ANewSequenceBeginsWithWhatTheEngineKnows) {
  Batch batch(2, {1e-3});
  batch.rounds(200, kMaxDraftLen);
  batch.add(batch.lengths.sequence());
  batch.rounds(1, kMaxDraftLen);  // a new size
  const Batch::Round next = batch.rounds(1, kMaxDraftLen);
  EXPECT_GT(next.lengths[2], 4);
}

// One plan a round, and only for those that may use it.
TEST(DraftLengths, SequencesMayHaveDifferentPlans) {
  Batch batch(0, {1e-3, 1.1e-3});
  batch.add_for({0});
  batch.add_for({1});
  batch.add_for({1});
  batch.add_for({});
  int by_first = 0, by_second = 0;
  for (int i = 0; i < 300; ++i) {
    const Batch::Round round = batch.rounds(1, kMaxDraftLen);
    if (!round.drafts()) continue;
    (round.plan == 0 ? by_first : by_second) += 1;
    for (std::size_t s = 0; s < 4; ++s) {
      const bool may = s < 3 && round.plan == (s == 0 ? 0 : 1);
      EXPECT_TRUE(may || round.lengths[s] == 0) << s;
    }
  }
  EXPECT_GT(by_second, 10 * by_first);  // two of them are worth more than one
  EXPECT_GT(by_first, 0);
}

// It is a matter of the round: a sequence comes to use a plan as it grows.
TEST(DraftLengths, ASequenceTakesToAPlanThatItMayComeToUse) {
  Batch batch(1, {2e-3, 1e-3});
  batch.draft_bytes[0][1] = -1;
  for (int i = 0; i < 100; ++i) {
    const Batch::Round round = batch.rounds(1, kMaxDraftLen);
    EXPECT_TRUE(!round.drafts() || round.plan == 0);
  }
  batch.draft_bytes[0][1] = 1;
  int by_second = 0;
  for (int i = 0; i < 100; ++i) by_second += batch.rounds(1, kMaxDraftLen).plan == 1;
  EXPECT_GT(by_second, 80);
}

TEST(DraftLengths, AFixedLengthStillChoosesThePlan) {
  Batch batch(3, {3e-3, 1e-3}, 5);
  batch.caps = {16, 3, 5};
  int chosen = 0;
  for (int i = 0; i < 100; ++i) {
    const Batch::Round round = batch.rounds(1, 4);
    EXPECT_EQ(round.lengths, (std::vector<int>{5, 3, 5}));
    chosen += round.plan == 1;
  }
  EXPECT_GT(chosen, 90);
  EXPECT_FALSE(batch.lengths.off());
}

TEST(DraftLengths, AFixedLengthKeepsTheRowsOfAPass) {
  Batch batch(3, {1e-3}, 4, 10);
  EXPECT_EQ(batch.rounds(1, 4).lengths, (std::vector<int>{4, 3, 0}));
}

// A length of 0 is learned from as well, and a batch as large as a pass drafts nothing.
TEST(DraftLengths, DraftsNothingWithoutACandidate) {
  Batch none(2, {}), zero(2, {1e-3}, 0), full(8, {1e-3}, {}, 8);
  for (Batch* batch : {&none, &zero, &full}) {
    for (int i = 0; i < 30; ++i) EXPECT_FALSE(batch->rounds(1, 4).drafts());
    EXPECT_FALSE(batch->lengths.off());
  }
  EXPECT_NE(none.lengths.explain().find("no drafts are wanted"), std::string::npos);
  EXPECT_NE(zero.lengths.explain().find("no drafts are wanted"), std::string::npos);
}

// Rounds cut short by a page border say nothing against long ones.
TEST(DraftLengths, DoesNotLearnFromTheCap) {
  Batch batch(2, {1e-3});
  batch.rounds(300, kMaxDraftLen);
  batch.caps = {1, 0};
  for (int i = 0; i < 50; ++i) {
    const Batch::Round round = batch.rounds(1, kMaxDraftLen);
    EXPECT_LE(round.lengths[0], 1);
    EXPECT_EQ(round.lengths[1], 0);
  }
  batch.caps = {16, 16};
  int longest = 0;
  for (int i = 0; i < 5; ++i) {
    longest = std::max(longest, batch.rounds(1, kMaxDraftLen).lengths[0]);
  }
  EXPECT_GT(longest, 6);
}

// What is said of the batch is not about rounds that were cut short, as the last of a text is.
TEST(DraftLengths, IsNotOffBecauseOfTheCap) {
  Batch batch(1, {1e-3});
  batch.drafts_seconds = 10e-3;  // which one drafted token is not worth
  batch.rounds(300, kMaxDraftLen);
  const auto told = [&] {
    const std::string line = batch.lengths.explain();
    return line.substr(0, line.find(','));
  };
  const std::string before = told();
  EXPECT_NE(before.find("now drafts"), std::string::npos) << before;
  int plain = 0;
  for (int i = 0; i < 20; ++i) {
    batch.caps = {1};
    plain += !batch.rounds(1, kMaxDraftLen).drafts();
    EXPECT_FALSE(batch.lengths.off());
    EXPECT_EQ(told(), before);
  }
  EXPECT_GT(plain, 15);
}

TEST(DraftLengths, ACapOfZeroIsPlainDecoding) {
  Batch batch(2, {1e-3});
  batch.caps = {0, 0};
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(batch.rounds(1, kMaxDraftLen).drafts());
  EXPECT_FALSE(batch.lengths.off());
}

// Small changes of the estimates change no length. Measured: 166 changes, nearly all by probes; 257
// if no length is kept (kKeepLengths 0).
TEST(DraftLengths, LengthsStay) {
  Batch batch(6, {2e-4});
  batch.row_seconds = 1e-3;
  std::mt19937_64 engine(7);
  std::geometric_distribution<int> rejection(0.15);
  const auto accept = [&](std::size_t) { return rejection(engine); };
  for (int i = 0; i < 300; ++i) batch.round(accept);
  int changes = 0;
  std::vector<int> before;
  for (int i = 0; i < 300; ++i) {
    const std::vector<int> lengths = batch.round(accept).lengths;
    for (std::size_t s = 0; s < before.size(); ++s) changes += lengths[s] != before[s];
    before = lengths;
  }
  EXPECT_LT(changes, 210);  // of 1,800
}

RC_GTEST_PROP(DraftLengths, KeepsCapsWhateverHappens, ()) {
  const int max_rows = *rc::gen::inRange(1, 65);
  const auto fixed_len = *rc::gen::inRange(0, 4) == 0
                             ? std::optional(*rc::gen::inRange(0, kMaxDraftLen + 1))
                             : std::nullopt;
  const int plans = *rc::gen::inRange(0, 4);
  Batch batch(1, std::vector<double>(plans, 1e-3), fixed_len, max_rows);
  for (int i = 0; i < 60; ++i) {
    if (*rc::gen::inRange(0, 4) == 0) {  // the batch changes
      batch.drafts.clear(), batch.caps.clear(), batch.draft_bytes.clear();
      const int count = *rc::gen::inRange(1, max_rows + 1);
      for (int s = 0; s < count; ++s) {
        std::vector<int> allowed;
        for (int plan = 0; plan < plans; ++plan) {
          if (*rc::gen::inRange(0, 3) > 0) allowed.push_back(plan);
        }
        batch.add_for(allowed, *rc::gen::inRange(0, 40));
      }
    }
    const Batch::Round round = batch.rounds(1, *rc::gen::inRange(0, kMaxDraftLen + 1));
    int rows = static_cast<int>(round.lengths.size());
    for (std::size_t s = 0; s < round.lengths.size(); ++s) {
      rows += round.lengths[s];
      RC_ASSERT(round.lengths[s] >= 0 && round.lengths[s] <= std::min(batch.caps[s], kMaxDraftLen));
    }
    RC_ASSERT(rows <= max_rows);
    RC_ASSERT(!round.drafts() || (round.plan >= 0 && round.plan < plans));
  }
}

// Plan 1 chooses pages by masses. Drafts are accepted for a while, then none, then again.
TEST(DraftLengths, RecordsMassesForWhoChoosesByThem) {
  for (const std::vector<double>& steps : {std::vector{2e-3, 1e-3}, std::vector{1e-3, 2e-3}}) {
    Batch batch(4, steps, {}, 1024, {false, true});
    const bool prefers_masses = steps[1] < steps[0];
    bool recorded = false;
    for (const int accept : {kMaxDraftLen, 0, kMaxDraftLen}) {
      int records = 0, by_mass = 0;
      for (int i = 0; i < 600; ++i) {
        const Batch::Round round = batch.rounds(1, accept);
        ASSERT_TRUE(recorded || !round.drafts() || round.plan != 1) << "nothing to choose by";
        recorded = round.records_masses;
        if (i < 300) continue;  // until it is settled
        records += recorded;
        by_mass += round.drafts() && round.plan == 1;
      }
      if (accept > 0 && prefers_masses) {
        EXPECT_EQ(records, 300);
        EXPECT_GT(by_mass, 250);
      } else {  // probes, and the round before each
        EXPECT_LT(records, 60);
        EXPECT_GE(records, by_mass);
        EXPECT_TRUE(by_mass > 0 || !prefers_masses);
      }
    }
  }
}

TEST(DraftLengths, AFixedLengthIsDraftedAtOnce) {
  Batch batch(2, {1e-3}, 3, 1024, {true});
  const Batch::Round round = batch.rounds(1, 0);
  EXPECT_EQ(round.lengths, (std::vector{3, 3}));
  EXPECT_TRUE(round.records_masses);
}

// What a choice costs the host, as it prints; at the least it does not grow with the square of the
// batch.
TEST(DraftLengths, CostOfAChoice) {
  for (const int plans : {1, 3, 7}) {
    double before = 0;
    for (const int sequences : {1, 64, 256}) {
      Batch batch(sequences, std::vector<double>(plans, 1e-3), {}, 8192);
      int calls = 0;
      const auto accept = [&](std::size_t s) {
        return static_cast<int>(++calls * 7 + s * 13) % 16;
      };
      for (int i = 0; i < 100; ++i) batch.round(accept);
      std::vector<double> times;
      for (int i = 0; i < 200; ++i) {
        const std::vector<SequenceLoad> loads = batch.loads();
        const Stopwatch watch;
        batch.lengths.choose(loads);
        times.push_back(1e6 * watch.seconds());
        batch.round(accept);
      }
      std::ranges::sort(times);
      fmt::print("{} plans, {:3} sequences: {:.1f} us, at least {:.1f}\n", plans, sequences,
                 times[100], times[0]);
      EXPECT_TRUE(sequences < 256 || times[0] < 10 * before);
      before = times[0];
    }
  }
}

TEST(DraftLengths, TakesPriorsOfTimes) {
  Batch batch(1, {1e-3});
  batch.lengths.set_priors(std::vector<TimedPass>{
      {.load = {.rows = 1}, .seconds = 0.01}, {.plan = 0, .load = {.rows = 1}, .seconds = 0.001}});
  EXPECT_NEAR(batch.lengths.costs().draft(0).seconds({.rows = 1}), 0.001, 1e-4);
}

// Counters of rounds, probes and lanes outlive 2^31, which a busy engine sees within months.
TEST(DraftLengths, GoesOnAfterBillionsOfRounds) {
  constexpr std::int64_t kRounds =
      (std::int64_t{1} << 31) / 5040 * 5040;  // a multiple of all turns
  for (const int accept : {0, kMaxDraftLen}) {
    Batch young(8, {1e-3, 2e-3}), old(0, {1e-3, 2e-3});
    Aged::age(old.lengths, kRounds);
    for (int i = 0; i < 8; ++i) old.add(old.lengths.sequence());
    for (int i = 0; i < 8000; ++i) {
      const Batch::Round expected = young.rounds(1, accept), found = old.rounds(1, accept);
      ASSERT_EQ(found.plan, expected.plan) << i;
      ASSERT_EQ(found.lengths, expected.lengths) << i;
    }
  }
}

TEST(DraftLengths, RefusesWhatCannotBe) {
  EXPECT_THROW(Batch(1, {1e-3}, 17), Error);
  EXPECT_THROW(Batch(1, {1e-3}, -1), Error);
  EXPECT_THROW(DraftLengths({.plans = {"a"}}), Error);
  Batch batch(1, {1e-3}, {}, 2);
  EXPECT_THROW(batch.lengths.choose({}), Error);
  batch.caps = {-1};
  EXPECT_THROW(batch.rounds(1, 0), Error);
  batch.caps = {1};
  batch.add(batch.lengths.sequence());
  batch.add(batch.lengths.sequence());
  EXPECT_THROW(batch.rounds(1, 0), Error);
  Batch other(1, {1e-3, 1e-3});
  batch.drafts = {other.lengths.sequence()};
  batch.caps = {1};
  EXPECT_THROW(batch.rounds(1, 0), Error);
}

// What was timed is neither tried for nothing nor drafted short.
TEST(DraftLengths, DraftsFromTheFirstRoundOnWhereTimesAreKnown) {
  Batch batch(1, {1e-3, 4e-3});
  EXPECT_FALSE(Batch(batch).rounds(1, kMaxDraftLen).drafts());
  batch.lengths.set_priors(
      std::vector<TimedPass>{{.load = {.rows = 1}, .seconds = 0.0101},
                             {.load = {.rows = 7}, .seconds = 0.0107},
                             {.plan = 0, .load = {.rows = 1}, .seconds = 0.001},
                             {.plan = 1, .load = {.rows = 1}, .seconds = 0.004}});
  const Batch::Round first = batch.rounds(1, kMaxDraftLen);
  EXPECT_TRUE(first.drafts());
  EXPECT_EQ(first.plan, 0);
  EXPECT_GT(first.lengths[0], 3);
}

// As where drafts read all that the target does. Times that are old are looked at again.
TEST(DraftLengths, HardlyTriesDraftsThatCouldNotPay) {
  for (const bool slow : {true, false}) {
    Batch batch(1, {slow ? 0.0101 : 0.006});
    batch.lengths.set_priors(
        std::vector<TimedPass>{{.load = {.rows = 1}, .seconds = 0.0101},
                               {.load = {.rows = 7}, .seconds = 0.0107},
                               {.plan = 0, .load = {.rows = 1}, .seconds = batch.step[0]}});
    int drafted = 0;
    for (int i = 0; i < 1000; ++i) drafted += batch.rounds(1, kMaxDraftLen).drafts();
    if (!slow) {
      EXPECT_GT(drafted, 900);
      continue;
    }
    EXPECT_EQ(drafted, 0);
    for (int i = 0; i < 20; ++i) {  // nor does every round look whether they could
      batch.rounds(1, kMaxDraftLen);
      EXPECT_LE(Aged::rounds_since_probe(batch.lengths), 16);
    }
    batch.step[0] = 0.004;
    for (int i = 0; i < 1000; ++i) drafted += batch.rounds(1, kMaxDraftLen).drafts();
    EXPECT_GT(drafted, 800);
  }
}

}  // namespace
}  // namespace quantspec
