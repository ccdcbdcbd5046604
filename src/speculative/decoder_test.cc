#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "base/error.h"
#include "speculative/decoder_test_support.h"
#include "speculative/speculative.h"
#include "speculative/test_support.h"

namespace quantspec {
namespace {

// Of `drafted` tokens at the first position and half as many at the second.
RoundStats stats(int drafted, int accepted) {
  RoundStats stats;
  stats.rounds = drafted;
  stats.drafted = drafted + drafted / 2;
  stats.accepted = accepted;
  stats.rejections = 1;
  stats.drafted_at[0] = drafted;
  stats.drafted_at[1] = drafted / 2;
  stats.accepted_at[0] = accepted;
  stats.draft_seconds = 1;
  stats.verify_seconds = 2;
  stats.commit_seconds = 0.5;
  return stats;
}

TEST(RoundStats, RatesByPositionEndWhereNothingWasDrafted) {
  EXPECT_TRUE(RoundStats().accepted_per_position().empty());
  EXPECT_EQ(stats(8, 6).accepted_per_position(), (std::vector<double>{0.75, 0}));
}

TEST(RoundStats, ASumHasTheRatesOfAllRounds) {
  RoundStats sum = stats(8, 6);
  sum += stats(4, 3);
  EXPECT_EQ(sum.rounds, 12);
  EXPECT_EQ(sum.drafted, 18);
  EXPECT_EQ(sum.accepted, 9);
  EXPECT_EQ(sum.rejections, 2);
  EXPECT_EQ(sum.accepted_per_position(), (std::vector<double>{0.75, 0}));
  EXPECT_EQ(sum.drafted_at[1], 6);
  EXPECT_EQ(sum.draft_seconds, 2);
  EXPECT_EQ(sum.verify_seconds, 4);
  EXPECT_EQ(sum.commit_seconds, 1);
}

// --- a decoder over a backend without a model ----------------------------------------------------

using Row = FakeBackend::Row;

class DecoderTest : public testing::Test {
 protected:
  // A sequence that has read a prompt; its first token, less than 100, is its name.
  Sequence& sequence(TokenId name, int prompt_tokens, DecodingOptions options = {}) {
    options.draft_len = 4;
    if (options.plans.empty()) options.plans = plans_;
    sequences_.push_back(std::make_unique<Sequence>(
        model_, pages_, std::max(512, prompt_tokens + 64), std::move(options)));
    std::vector<TokenId> prompt(prompt_tokens, 1);
    prompt[0] = name;
    decoder_.prefill(*sequences_.back(), prompt);
    return *sequences_.back();
  }
  Plan plan(const char* name, KvRead read) const {
    return Plan::uniform(name, model_.config().num_layers, WeightRead::kTarget, {.read = read});
  }
  std::vector<TokenId> names() const {
    std::vector<TokenId> names;
    for (const RoundLane& lane : backend_.batch) {
      names.push_back(lane.at.tokens == nullptr ? -1 : lane.at.tokens[0]);
    }
    return names;
  }
  // The tokens of a step that accepted so many, of a sequence that had `length`.
  static std::vector<TokenId> expected(TokenId name, int length, int accepted) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < accepted; ++i) tokens.push_back(FakeBackend::proposed(length + i));
    tokens.push_back(FakeBackend::chosen(name, length + accepted));
    return tokens;
  }

  FakeBackend backend_;
  Model model_ = load_tiny_model(backend_);
  PagePool pages_{backend_, kv_shape(model_.config(), 0)};
  std::vector<Plan> plans_ = {plan("upper", KvRead::kUpper), plan("both", KvRead::kBoth)};
  Decoder decoder_{model_};
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(DecoderTest, LanesAreOrderedByPlansAndLongestDraftsFirst) {
  const std::vector<Lane> lanes = {{&sequence(10, 5), {1, 2}},
                                   {&sequence(11, 6), {0, 1}},
                                   {&sequence(12, 7), {0, 0}},
                                   {&sequence(13, 8), {0, 3}},
                                   {&sequence(14, 9), {1, 4}}};
  decoder_.round(lanes);
  EXPECT_TRUE(backend_.round_keys.empty());  // rounds of two plans are not repeated
  EXPECT_EQ(names(), (std::vector<TokenId>{13, 11, 14, 10, 12}));
  int first_row = 0;
  for (const RoundLane& lane : backend_.batch) {
    EXPECT_EQ(lane.first_row, first_row);
    first_row += lane.rows();
  }
  // Draft passes have a row of each lane that drafts so deep, group by group.
  const std::vector<std::vector<Row>> drafts = {{{13, 1}, {11, 1}}, {{13, 1}},          {{13, 1}},
                                                {{14, 1}, {10, 1}}, {{14, 1}, {10, 1}}, {{14, 1}},
                                                {{14, 1}}};
  ASSERT_EQ(backend_.passes.size(), drafts.size() + 1);
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    EXPECT_EQ(backend_.passes[i].lanes, drafts[i]) << i;
    EXPECT_EQ(backend_.passes[i].depth, static_cast<int>(i < 3 ? i : i - 3));
    EXPECT_EQ(backend_.passes[i].num_rows, std::ssize(drafts[i]));
    EXPECT_FALSE(backend_.passes[i].verifies);
  }
  const FakeBackend::Pass& verify = backend_.passes.back();
  EXPECT_TRUE(verify.verifies);
  EXPECT_EQ(verify.lanes, (std::vector<Row>{{13, 4}, {11, 2}, {14, 5}, {10, 3}, {12, 1}}));
  EXPECT_EQ(verify.num_rows, 15);
  EXPECT_EQ(backend_.marks, (std::vector{Mark::kBegin, Mark::kDrafted, Mark::kEnd}));
}

TEST_F(DecoderTest, StepsAreInTheOrderOfTheRoundsLanes) {
  const std::vector<Lane> lanes = {
      {&sequence(10, 5), {0, 1}}, {&sequence(11, 6), {1, 4}}, {&sequence(12, 7), {0, 0}}};
  backend_.accepts = {{10, 1}, {11, 2}};
  const Decoder::Outcome outcome = decoder_.round(lanes);
  const std::vector<int> accepted = {1, 2, 0};
  ASSERT_EQ(outcome.steps.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const int length = 6 + i;  // the prompt's, and the pending token
    const Step& step = outcome.steps[i];
    EXPECT_EQ(step.accepted, accepted[i]);
    EXPECT_EQ(step.choice, lanes[i].choice);
    EXPECT_EQ(std::vector<TokenId>(step.tokens.begin(), step.tokens.end()),
              expected(10 + i, length, accepted[i]));
    std::vector<TokenId> rejected;
    for (int depth = accepted[i]; depth < lanes[i].choice.draft_len; ++depth) {
      rejected.push_back(FakeBackend::proposed(length + depth));
    }
    EXPECT_EQ(std::vector<TokenId>(step.rejected.begin(), step.rejected.end()), rejected);
    const Sequence& sequence = *lanes[i].sequence;
    EXPECT_EQ(std::ssize(sequence.tokens()), length + accepted[i] + 1);
    EXPECT_EQ(sequence.cache().length(), length + accepted[i]);
    EXPECT_EQ(sequence.stats().rounds, 1);
    EXPECT_EQ(sequence.stats().drafted, lanes[i].choice.draft_len);
    EXPECT_EQ(sequence.stats().accepted, accepted[i]);
    EXPECT_DOUBLE_EQ(sequence.stats().draft_seconds, 2.0 / 3);
    EXPECT_DOUBLE_EQ(sequence.stats().verify_seconds, 3.0 / 3);
  }
  EXPECT_DOUBLE_EQ(outcome.draft_seconds, 2.0);
}

TEST_F(DecoderTest, RoundsOfOnePlanArePaddedWhereTheyAreRepeated) {
  backend_.repeats = true;
  decoder_.round(std::vector<Lane>{
      {&sequence(10, 5), {0, 1}}, {&sequence(11, 6), {0, 0}}, {&sequence(12, 7), {0, 2}}});
  EXPECT_EQ(names(), (std::vector<TokenId>{12, 10, 11, -1}));
  EXPECT_EQ(backend_.batch[3].rows(), 0);
  EXPECT_EQ(backend_.batch[3].first_row, 6);
  EXPECT_EQ(backend_.lane_keys[3], LaneKey{});
  ASSERT_EQ(backend_.passes.size(), 3u);  // all lanes take part in each, with a row or without
  EXPECT_EQ(backend_.passes[0].lanes, (std::vector<Row>{{12, 1}, {10, 1}, {11, 0}, {-1, 0}}));
  EXPECT_EQ(backend_.passes[1].lanes, (std::vector<Row>{{12, 1}, {10, 0}, {11, 0}, {-1, 0}}));
  EXPECT_EQ(backend_.passes[2].lanes, (std::vector<Row>{{12, 3}, {10, 2}, {11, 1}, {-1, 0}}));
  EXPECT_EQ(backend_.passes[2].num_rows, 8);  // of six rows
}

TEST_F(DecoderTest, KeysOfRoundsDoNotNameSequences) {
  backend_.repeats = true;
  const DecodingOptions greedy{.sampling = {.temperature = 0}};
  const auto key = [&](TokenId name, DecodingOptions options, DraftChoice choice) {
    const Lane lane{&sequence(name, 5 + name, std::move(options)), choice};
    decoder_.round({&lane, 1});
    return backend_.round_keys.back();
  };
  const RoundKey first = key(10, {}, {0, 2});
  EXPECT_EQ(key(11, {}, {0, 2}), first);
  EXPECT_EQ(key(12, {}, {0, 4}), first);  // the batch's shape has the length
  EXPECT_NE(backend_.lane_keys[0].sequence, 0u);
  EXPECT_NE(key(13, {}, {1, 2}), first);
  EXPECT_EQ(key(14, {}, {0, 0}).draft_plan, -1);
  EXPECT_TRUE(first.keeps_drafts);
  EXPECT_FALSE(key(15, greedy, {0, 2}).keeps_drafts);
  EXPECT_FALSE(first.keeps_logits);
  EXPECT_TRUE(key(16, {.log_probs = true}, {0, 2}).keeps_logits);
  Decoder other(model_);
  const Lane lane{sequences_[0].get(), {0, 2}};
  other.round({&lane, 1});
  EXPECT_NE(backend_.round_keys.back().issuer, first.issuer);
}

TEST_F(DecoderTest, KeysOfBatchesSayAboutHowLongContextsAre) {
  const auto contexts = [&](std::vector<int> lengths) {
    std::vector<Lane> lanes;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      lanes.push_back({&sequence(static_cast<TokenId>(10 + i), lengths[i]), {0, 1}});
    }
    decoder_.round(lanes);
    return backend_.round_keys.back().contexts;
  };
  EXPECT_EQ(contexts({9000}), 0);  // one sequence goes on in the same graph
  EXPECT_EQ(contexts({5, 2000}), 0);
  EXPECT_EQ(contexts({1100, 1000}), 2);
  EXPECT_EQ(contexts({1600, 1000}), 2);
  EXPECT_EQ(contexts({5, 2100}), 3) << "one is much longer";
  EXPECT_EQ(contexts({9000, 8900}), 8);
}

TEST_F(DecoderTest, LanesAreKnownBySequenceAndPlan) {
  Sequence &a = sequence(10, 5), &b = sequence(11, 5);
  const auto keys = [&](DraftChoice of_a, DraftChoice of_b) {
    const std::vector<Lane> lanes = {{&a, of_a}, {&b, of_b}};
    decoder_.round(lanes);
    return backend_.lane_keys;  // a's is first where its draft is as long
  };
  const auto first = keys({0, 1}, {0, 1});
  EXPECT_NE(first[0].sequence, first[1].sequence);
  EXPECT_EQ(first[0].plan, 0);
  EXPECT_EQ(keys({0, 0}, {0, 0}), first);  // what was bound by the last plan stays
  EXPECT_EQ(keys({1, 1}, {1, 1})[0].plan, 1);
  DecodingOptions options = a.options();
  options.sampling.seed = 5;
  a.set_options(options);  // the lane reads what it read
  EXPECT_EQ(keys({0, 1}, {0, 1})[0], first[0]);
}

TEST_F(DecoderTest, LogProbabilitiesAreThoseOfTheStepsTokens) {
  Sequence &a = sequence(10, 5, {.log_probs = true}), &b = sequence(11, 6);
  backend_.accepts = {{10, 2}};
  const std::vector<Lane> lanes = {{&a, {0, 3}}, {&b, {0, 1}}};
  const Decoder::Outcome outcome = decoder_.round(lanes);
  ASSERT_EQ(outcome.steps[0].log_probs.size(), 3u);
  for (const float log_prob : outcome.steps[0].log_probs) {
    EXPECT_NEAR(log_prob, -std::log(model_.config().vocab_size), 1e-5);  // all logits are equal
  }
  EXPECT_TRUE(outcome.steps[1].log_probs.empty());
}

TEST_F(DecoderTest, ARoundThatFailsLeavesSequencesAsTheyWere) {
  for (const char* op : {"head", "propose", "judge", "end_rounds"}) {
    Sequence &a = sequence(10, 5), &b = sequence(11, 6);
    const std::vector<Lane> lanes = {{&a, {0, 3}}, {&b, {1, 2}}};
    const std::vector<TokenId> a_tokens = a.tokens(), b_tokens = b.tokens();
    backend_.accepts = {{10, 3}, {11, 1}};
    backend_.broken = op;
    EXPECT_THROW(decoder_.round(lanes), Error) << op;
    EXPECT_EQ(a.tokens(), a_tokens) << op;
    EXPECT_EQ(b.tokens(), b_tokens) << op;
    EXPECT_EQ(a.cache().length(), 5) << op;
    EXPECT_EQ(b.cache().length(), 6) << op;
    EXPECT_EQ(a.stats().rounds, 0) << op;
    const Decoder::Outcome outcome = decoder_.round(lanes);  // the backend is told anew
    EXPECT_EQ(std::vector<TokenId>(outcome.steps[0].tokens.begin(), outcome.steps[0].tokens.end()),
              expected(10, 6, 3))
        << op;
    EXPECT_EQ(std::vector<TokenId>(outcome.steps[1].tokens.begin(), outcome.steps[1].tokens.end()),
              expected(11, 7, 1))
        << op;
  }
}

TEST_F(DecoderTest, APromptThatFailsLeavesTheSequenceEmpty) {
  Sequence& a = sequence(10, 5);
  backend_.broken = "judge";
  EXPECT_THROW(decoder_.prefill(a, std::vector<TokenId>{3, 4}), Error);
  EXPECT_TRUE(a.tokens().empty());
  EXPECT_EQ(a.cache().length(), 0);
  EXPECT_EQ(decoder_.prefill(a, std::vector<TokenId>{3, 4}), FakeBackend::chosen(3, 2));
}

}  // namespace
}  // namespace quantspec
