#include "sampler/acceptance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "sampler/sampler.h"

namespace quantspec {
namespace {

constexpr int kVocab = 8;
using Row = std::vector<float>;

// A random distribution in which about a third of the tokens are impossible.
Row random_row(std::mt19937& engine) {
  std::exponential_distribution<float> exponential;
  Row row(kVocab);
  for (float& prob : row) prob = engine() % 3 == 0 ? 0.0f : exponential(engine);
  row[engine() % kVocab] += 0.1f;
  float sum = 0;
  for (float prob : row) sum += prob;
  for (float& prob : row) prob /= sum;
  return row;
}

// A toy language model: the next token's distribution depends on the last token alone.
struct Bigram {
  explicit Bigram(std::mt19937& engine) {
    for (int i = 0; i < kVocab; ++i) next.push_back(random_row(engine));
  }
  std::vector<Row> next;  // [last token]
};

struct Round {
  std::vector<TokenId> drafted;
  Acceptance acceptance;
  std::vector<TokenId> output() const {  // accepted tokens, then the target's
    std::vector<TokenId> tokens(drafted.begin(), drafted.begin() + acceptance.accepted);
    tokens.push_back(acceptance.next);
    return tokens;
  }
};

Round play(SpecSampling mode, const Bigram& draft, const Bigram& target, TokenId last,
           int draft_len, const CounterRng& rng, std::int64_t position) {
  Round round;
  std::vector<float> draft_probs;
  std::vector<float> target_probs = target.next[last];
  for (int i = 0; i < draft_len; ++i) {
    const Row& row = draft.next[last];
    draft_probs.insert(draft_probs.end(), row.begin(), row.end());
    last = draft_token(mode, row, rng, position + i);
    round.drafted.push_back(last);
    target_probs.insert(target_probs.end(), target.next[last].begin(), target.next[last].end());
  }
  round.acceptance =
      accept(mode, {draft_probs.data(), draft_len, kVocab},
             {target_probs.data(), draft_len + 1, kVocab}, round.drafted, rng, position);
  return round;
}

// Chi-square p-value by the Wilson-Hilferty approximation; impossible tokens must not occur.
double fit(const Row& probs, const std::vector<int>& counts) {
  double draws = 0, statistic = 0;
  for (int count : counts) draws += count;
  int cells = 0;
  for (int i = 0; i < kVocab; ++i) {
    const double expected = probs[i] * draws;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (cells == 1) return 1;
  const double spread = 2.0 / (9.0 * (cells - 1));
  const double z = (std::cbrt(statistic / (cells - 1)) - (1 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// 400'000 rounds over 20 pairs of models. The first token of a round has the target's distribution,
// and so has every later one given the token before it, up to the correction or the bonus.
TEST(AcceptRejection, EveryTokenHasTheTargetsDistribution) {
  std::mt19937 engine(1);
  for (int pair = 0; pair < 20; ++pair) {
    const Bigram draft(engine), target(engine);
    const CounterRng rng(engine());
    const int draft_len = 1 + pair % 5;
    std::vector<int> first(kVocab);
    std::vector<std::vector<int>> after(kVocab, std::vector<int>(kVocab));
    for (int i = 0; i < 20'000; ++i) {
      // 7 apart and not 8: rounds share positions, as they do in decoding after a rejection.
      const auto tokens =
          play(SpecSampling::kRejection, draft, target, 0, draft_len, rng, 7 * i).output();
      ++first[tokens[0]];
      for (std::size_t k = 1; k < tokens.size(); ++k) ++after[tokens[k - 1]][tokens[k]];
    }
    EXPECT_GT(fit(target.next[0], first), 1e-4) << pair;
    for (int last = 0; last < kVocab; ++last) {
      int seen = 0;
      for (int count : after[last]) seen += count;
      if (seen < 500) continue;  // too few for the approximation
      EXPECT_GT(fit(target.next[last], after[last]), 1e-5) << pair << " " << last;
    }
  }
}

// A proposer knows what was chosen and means no good: the likeliest token, the least likely one,
// one that is impossible where there is one, any, and what the random numbers of tokens before hint
// at. Nothing is known of the probability by which it proposes.
TokenId propose(int kind, const Row& row, TokenId last, std::int64_t position) {
  const auto index = [&](auto at) { return static_cast<TokenId>(at - row.begin()); };
  switch (kind) {
    case 0:
      return index(std::ranges::max_element(row));
    case 1:
      return index(std::ranges::min_element(row));
    case 2:
      return static_cast<TokenId>((last * 7 + position * 3) % kVocab);
    default:
      return (last + 1) % kVocab;
  }
}

// 1.2 million tokens. Rounds of drafts with their probabilities, rejected by those, and rounds of
// tokens that were proposed, in any order and on the same random numbers: each token has the
// target's distribution given the one before it.
TEST(AcceptRejection, RoundsOfProposedTokensKeepTheTargetsTransitions) {
  std::mt19937 engine(4);
  for (int kind = 0; kind < 4; ++kind) {
    const Bigram draft(engine), target(engine);
    const CounterRng rng(engine());
    std::vector<std::vector<int>> after(kVocab, std::vector<int>(kVocab));
    TokenId last = 0;
    int accepted = 0;
    for (std::int64_t position = 1; position < 300'000;) {
      Round round;
      if (position % 3 == 0) {
        round = play(SpecSampling::kRejection, draft, target, last, 3, rng, position);
      } else {
        Row rows = target.next[last];
        for (TokenId before = last; round.drafted.size() < 3;) {
          before = propose(kind, target.next[before], before, position);
          round.drafted.push_back(before);
          rows.insert(rows.end(), target.next[before].begin(), target.next[before].end());
        }
        round.acceptance = accept(SpecSampling::kCoupled, {}, {rows.data(), 4, kVocab},
                                  round.drafted, rng, position);
        accepted += round.acceptance.accepted;
      }
      for (const TokenId token : round.output()) {
        ++after[last][token];
        last = token;
        ++position;
      }
    }
    EXPECT_GT(accepted, kind == 1 ? -1 : 10'000);
    for (int before = 0; before < kVocab; ++before) {
      if (std::reduce(after[before].begin(), after[before].end()) < 500) continue;
      EXPECT_GT(fit(target.next[before], after[before]), 1e-5) << kind << " " << before;
    }
  }
}

// Decoding round after round, where rejected positions are drafted again: long runs of the output
// have the target's transition probabilities.
TEST(AcceptRejection, DecodingHasTheTargetsTransitions) {
  std::mt19937 engine(2);
  const Bigram draft(engine), target(engine);
  const CounterRng rng(3);
  std::vector<std::vector<int>> after(kVocab, std::vector<int>(kVocab));
  TokenId last = 0;
  for (std::int64_t position = 1; position < 400'000;) {
    for (TokenId token :
         play(SpecSampling::kRejection, draft, target, last, 4, rng, position).output()) {
      ++after[last][token];
      last = token;
      ++position;
    }
  }
  for (int from = 0; from < kVocab; ++from) {
    EXPECT_GT(fit(target.next[from], after[from]), 1e-4) << from;
  }
}

TEST(AcceptRejection, AcceptsTheOverlapOfTheDistributions) {
  std::mt19937 engine(4);
  for (int pair = 0; pair < 10; ++pair) {
    const Bigram draft(engine), target(engine);
    double overlap = 0;
    for (int i = 0; i < kVocab; ++i) overlap += std::min(draft.next[0][i], target.next[0][i]);
    int accepted = 0;
    constexpr int kRounds = 40'000;
    for (int i = 0; i < kRounds; ++i) {
      accepted += play(SpecSampling::kRejection, draft, target, 0, 1, CounterRng(5), 2 * i)
                      .acceptance.accepted;
    }
    // Four standard deviations of a share of 40'000: at most 0.01.
    EXPECT_NEAR(accepted / static_cast<double>(kRounds), overlap, 0.01) << pair;
  }
}

TEST(AcceptRejection, EqualDistributionsAcceptEverything) {
  std::mt19937 engine(6);
  const Bigram model(engine);
  for (int i = 0; i < 5000; ++i) {
    const Round round =
        play(SpecSampling::kRejection, model, model, i % kVocab, 6, CounterRng(7), i);
    EXPECT_EQ(round.acceptance.accepted, 6);
    const Row& last = model.next[round.drafted.back()];
    EXPECT_EQ(round.acceptance.next,  // the bonus
              sample(last, CounterRng(7).uniform(i + 6, RandomStream::kSample)));
  }
}

TEST(AcceptRejection, DisjointDistributionsAcceptNothing) {
  const Row draft = {0.5f, 0.5f, 0, 0, 0, 0, 0, 0};
  const std::vector<float> target = {0, 0, 0.25f, 0.75f, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
  for (int i = 0; i < 1000; ++i) {
    const std::vector<TokenId> drafted = {i % 2};
    const auto acceptance = accept(SpecSampling::kRejection, {draft.data(), 1, kVocab},
                                   {target.data(), 2, kVocab}, drafted, CounterRng(8), i);
    EXPECT_EQ(acceptance.accepted, 0);
    EXPECT_TRUE(acceptance.next == 2 || acceptance.next == 3);
  }
}

// Sums that differ in the last bit leave a rejection without any residual; it must not invent a
// token that the target rules out.
TEST(AcceptRejection, FallsBackToTheTargetWithoutAResidual) {
  const Row draft = {0, 0, 1, 0, 0, 0, 0, 0};
  std::vector<float> target(2 * kVocab, 0.0f);
  target[2] = 0.5f;  // less than the draft everywhere
  const std::vector<TokenId> drafted = {2};
  int rejected = 0;
  for (int i = 0; i < 100; ++i) {
    target[kVocab + 2] = 1;
    const auto acceptance = accept(SpecSampling::kRejection, {draft.data(), 1, kVocab},
                                   {target.data(), 2, kVocab}, drafted, CounterRng(9), i);
    rejected += acceptance.accepted == 0;
    EXPECT_EQ(acceptance.next, 2);
  }
  EXPECT_GT(rejected, 20);
}

TEST(AcceptRejection, RefusesATokenThatTheDraftRulesOut) {
  const Row draft = {1, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<float> target(2 * kVocab, 0.125f);
  const std::vector<TokenId> drafted = {1};
  EXPECT_THROW(accept(SpecSampling::kRejection, {draft.data(), 1, kVocab},
                      {target.data(), 2, kVocab}, drafted, CounterRng(0), 0),
               Error);
}

TEST(Accept, WithoutADraftIsPlainSampling) {
  std::mt19937 engine(10);
  const Bigram model(engine);
  const CounterRng rng(11);
  for (int i = 0; i < 1000; ++i) {
    const Row& row = model.next[i % kVocab];
    const ProbsView target{row.data(), 1, kVocab};
    EXPECT_EQ(accept(SpecSampling::kRejection, {}, target, {}, rng, i),
              (Acceptance{0, sample(row, rng.uniform(i, RandomStream::kSample))}));
    EXPECT_EQ(accept(SpecSampling::kCoupled, {}, target, {}, rng, i),
              (Acceptance{0, sample_coupled(row, rng, i)}));
  }
}

// Coupled sampling: whatever the draft and its length, the output is plain sampling's.
TEST(AcceptCoupled, DecodesWhatPlainSamplingDoes) {
  std::mt19937 engine(12);
  const Bigram draft(engine), target(engine);
  const CounterRng rng(13);
  std::vector<TokenId> plain = {0};
  for (std::int64_t position = 1; position < 2000; ++position) {
    plain.push_back(sample_coupled(target.next[plain.back()], rng, position));
  }
  for (const Bigram* drafter : {&draft, &target}) {
    for (int draft_len : {0, 1, 3, 8}) {
      std::vector<TokenId> tokens = {0};
      while (tokens.size() < plain.size()) {
        const Round round = play(SpecSampling::kCoupled, *drafter, target, tokens.back(), draft_len,
                                 rng, static_cast<std::int64_t>(tokens.size()));
        for (TokenId token : round.output()) tokens.push_back(token);
      }
      tokens.resize(plain.size());
      EXPECT_EQ(tokens, plain) << draft_len;
    }
  }
}

// One-hot distributions, as temperature 0 gives, reduce both modes to the longest agreeing run.
TEST(Accept, GreedyIsTheLongestAgreeingRun) {
  std::mt19937 engine(14);
  for (int trial = 0; trial < 500; ++trial) {
    const int draft_len = static_cast<int>(engine() % 5);
    std::vector<TokenId> drafted(draft_len), choice(draft_len + 1);
    for (TokenId& token : drafted) token = static_cast<TokenId>(engine() % 2);
    for (TokenId& token : choice) token = static_cast<TokenId>(engine() % 2);
    std::vector<float> draft(draft_len * kVocab), target((draft_len + 1) * kVocab);
    for (int i = 0; i < draft_len; ++i) draft[i * kVocab + drafted[i]] = 1;
    for (int i = 0; i <= draft_len; ++i) target[i * kVocab + choice[i]] = 1;
    for (auto mode : {SpecSampling::kRejection, SpecSampling::kCoupled}) {
      EXPECT_EQ(accept(mode, {draft.data(), draft_len, kVocab},
                       {target.data(), draft_len + 1, kVocab}, drafted, CounterRng(15), trial),
                accept_matching(drafted, choice));
    }
  }
}

TEST(AcceptMatching, IsTheLongestAgreeingRun) {
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(accept_matching(Tokens{}, Tokens{7}), (Acceptance{0, 7}));
  EXPECT_EQ(accept_matching(Tokens{1, 2, 3}, Tokens{1, 2, 3, 4}), (Acceptance{3, 4}));
  EXPECT_EQ(accept_matching(Tokens{1, 2, 3}, Tokens{1, 9, 3, 4}), (Acceptance{1, 9}));
  EXPECT_EQ(accept_matching(Tokens{1, 2, 3}, Tokens{5, 2, 3, 4}), (Acceptance{0, 5}));
  EXPECT_THROW(accept_matching(Tokens{1}, Tokens{1}), Error);
}

}  // namespace
}  // namespace quantspec
