// How a round chooses its tokens, of every backend against the reference, whose functions are those
// of sampler/: propose, judge, run_round, end_round, and the marks of time between them.
#include <functional>
#include <memory>

#include "backend/op_test_support.h"
#include "base/error.h"

namespace quantspec {
namespace {

constexpr int kVocab = 1003;
constexpr int kHistory = 20;
constexpr int kRounds = 4;
constexpr int kManyRounds = 12;  // so that a backend that repeats what was issued comes to do so

struct Chosen {
  std::vector<TokenId> tokens;
  std::vector<int> accepted;
  Floats draft_rows;  // of the last round
  bool repeated = false;
};

struct RoundSetup {
  RoundSetup(Backend& backend, const TokenRule& rule)
      : backend(backend),
        biases(backend, std::vector<LogitBias>{{3, 4.0f}, {700, -100.0f}, {3, -INFINITY}}),
        rule(backend, std::vector<TokenRule>{with_biases(rule, biases.data())}),
        tokens(backend, history()),
        round(backend, std::vector<Round>{{.length = kHistory, .drafted = 0}}),
        at{this->rule.data(), rule.by_argmax(), tokens.data(), round.data(), kVocab} {}

  static TokenRule with_biases(TokenRule rule, const LogitBias* biases) {
    rule.prompt_length = kHistory - 6;
    rule.biases = biases;
    return rule;
  }
  static std::vector<TokenId> history() {
    std::vector<TokenId> tokens(kHistory + kManyRounds * (kMaxDraftLen + 1), -1);
    for (int i = 0; i < kHistory; ++i) tokens[i] = 50 * i % kVocab;
    return tokens;
  }
  bool intact() const {
    return biases.intact() && rule.intact() && tokens.intact() && round.intact();
  }

  // The target's logits are the draft's with a little noise.
  Chosen run(int draft_len) {
    const int rounds = draft_len == 4 ? kManyRounds : kRounds;
    static std::uint64_t issuers = 0;
    const RoundKey key{issuers++, 0, 0, true, false};
    const std::size_t logits = std::size_t(draft_len + 1) * kVocab;
    Guarded<float> draft(backend, logits), target(backend, logits);
    Chosen chosen;
    for (int r = 0; r < rounds; ++r) {
      upload(normal_floats(logits, 100 + r, 2.0f), draft);
      Floats noisy = normal_floats(logits, 200 + r, 0.3f);
      const Floats rows = draft.values();
      std::transform(noisy.begin(), noisy.end(), rows.begin(), noisy.begin(), std::plus());
      upload(noisy, target);
      const RoundLane of = lane(draft_len, draft.data());
      backend.begin_batch({&of, 1});
      const bool issued = backend.run_round(key, [&] {
        backend.mark(Mark::kBegin);
        for (int i = 0; i < draft_len; ++i) {
          backend.propose({0, 1, i, draft.data() + std::ptrdiff_t{i} * kVocab});
        }
        backend.mark(Mark::kDrafted);
        backend.judge({0, 1, target.data()});
        backend.mark(Mark::kEnd);
      });
      EXPECT_TRUE(issued || r > 0);
      chosen.repeated |= !issued;
      add(backend.end_round(round.data()), chosen);
      EXPECT_GE(backend.seconds_between(Mark::kBegin, Mark::kDrafted), 0);
      EXPECT_GE(backend.seconds_between(Mark::kDrafted, Mark::kEnd), 0);
      EXPECT_TRUE(intact() && draft.intact() && target.intact());
    }
    chosen.draft_rows = draft.values();
    return chosen;
  }
  RoundLane lane(int draft_len, const float* draft_probs, int first_row = 0) const {
    return {at, draft_len, first_row, draft_probs, kVocab};
  }
  void upload(const Floats& values, Guarded<float>& to) {
    backend.upload(to.data(), values.data(), values.size() * sizeof(float));
  }
  void add(const Round& ended, Chosen& chosen) const {
    EXPECT_EQ(ended.drafted, 0);
    chosen.tokens = tokens.values();
    chosen.tokens.resize(ended.length);
    EXPECT_TRUE(std::equal(ended.added, ended.added + ended.accepted + 1,
                           chosen.tokens.end() - ended.accepted - 1));
    chosen.accepted.push_back(ended.accepted);
  }

  Backend& backend;
  Guarded<LogitBias> biases;  // two, and an end
  Guarded<TokenRule> rule;
  Guarded<TokenId> tokens;
  Guarded<Round> round;
  RoundTokens at;
};

std::vector<TokenRule> rules() {
  const SamplingParams greedy{.temperature = 0.0f};
  const SamplingParams penalized{.temperature = 0.0f, .repeat_penalty = 1.3f};
  const SamplingParams cut{.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .seed = 7};
  const SamplingParams all{.min_p = 0.02f, .repeat_penalty = 1.1f, .repeat_last_n = -1, .seed = 8};
  std::vector<TokenRule> rules;
  for (const SamplingParams& sampling : {greedy, penalized, cut, all}) {
    rules.push_back({sampling, SpecSampling::kRejection});
    rules.push_back({sampling, SpecSampling::kCoupled});
  }
  rules.push_back({greedy, SpecSampling::kRejection, 0.7f});
  const SamplingParams counted{.presence_penalty = 0.5f, .frequency_penalty = 0.25f, .seed = 9};
  for (const SamplingParams& sampling : {greedy, counted}) {
    for (const SpecSampling mode : {SpecSampling::kRejection, SpecSampling::kCoupled}) {
      TokenRule biased{sampling, mode};
      biased.num_biases = 2;
      biased.num_ends = 1;
      biased.min_tokens = 10;
      rules.push_back(biased);
    }
  }
  return rules;
}

class RoundOps : public OpTest {};

TEST_P(RoundOps, TokensAreThoseOfTheReference) {
  for (const TokenRule& rule : rules()) {
    for (const int draft_len : {0, 1, 4, kMaxDraftLen}) {
      const Chosen chosen = RoundSetup(*backend_, rule).run(draft_len);
      const Chosen expected = RoundSetup(*reference_, rule).run(draft_len);
      EXPECT_EQ(chosen.tokens, expected.tokens)
          << "temperature " << rule.sampling.temperature << ", seed " << rule.sampling.seed
          << ", mode " << int(rule.mode) << ", draft_len " << draft_len;
      EXPECT_EQ(chosen.accepted, expected.accepted);
      EXPECT_EQ(chosen.repeated, draft_len == 4 && GetParam() == "cuda");
      // Sums of a row may be added in another order.
      EXPECT_TRUE(near(chosen.draft_rows, expected.draft_rows, 1e-6));
    }
  }
}

// Tokens that no pass drew are judged by what the target draws, also where drafts are rejected.
TEST_P(RoundOps, ProposedTokensAreAcceptedAsByCoupledSampling) {
  constexpr int kProposed = 3;
  const Floats logits = normal_floats(std::size_t{kProposed + 1} * kVocab, 5, 2.0f);
  for (TokenRule rule : rules()) {
    if (rule.simulated_acceptance >= 0) continue;
    SCOPED_TRACE(testing::Message() << "temperature " << rule.sampling.temperature << ", seed "
                                    << rule.sampling.seed << ", mode " << int(rule.mode));
    const auto judged = [&](Backend& backend, std::vector<TokenId> proposed) {
      RoundSetup setup(backend, rule);
      Guarded<float> target(backend, logits);
      backend.upload(setup.tokens.data() + kHistory, proposed.data(),
                     proposed.size() * sizeof(TokenId));
      const Round round{.length = kHistory, .drafted = kProposed};
      backend.upload(setup.round.data(), &round, sizeof(round));
      RoundLane lane = setup.lane(kProposed, nullptr);
      lane.proposed = true;
      backend.begin_batch({&lane, 1});
      backend.propose({0, 1, 0, target.data()});  // changes nothing: others draw, not this lane
      backend.judge({0, 1, target.data()});
      const Round ended = backend.end_round(setup.round.data());
      return std::vector<TokenId>(ended.added, ended.added + ended.accepted + 1);
    };
    const std::vector<TokenId> wrong(kProposed, kVocab - 1);
    std::vector<TokenId> chosen = judged(*reference_, wrong);
    for (std::size_t right = 1; right <= kProposed; ++right) {
      chosen.resize(kProposed, kVocab - 1);
      chosen = judged(*reference_, chosen);
      EXPECT_EQ(chosen.size(), right + 1);
    }
    chosen.resize(kProposed);
    for (const auto& proposed : {wrong, chosen}) {
      EXPECT_EQ(judged(*backend_, proposed), judged(*reference_, proposed));
    }
  }
}

// Many lanes, some of them empty, that choose differently and draft as many tokens as they like:
// each as if it were alone.
TEST_P(RoundOps, LanesChooseAsIfAlone) {
  constexpr int kLanes = 45, kDepths = 3;
  const std::vector<TokenRule> all = rules();
  std::vector<std::unique_ptr<RoundSetup>> together, alone;
  std::vector<RoundLane> lanes;
  const Floats draft_logits = normal_floats(kDepths * kLanes * kVocab, 1, 2.0f);
  Guarded<float> draft(*backend_, draft_logits);
  int rows = 0;
  for (int i = 0; i < kLanes; ++i) {
    for (auto* setups : {&together, &alone}) {
      setups->push_back(std::make_unique<RoundSetup>(*backend_, all[i % all.size()]));
    }
    const int draft_len = i % (kDepths + 2) - 1;  // -1: empty
    lanes.push_back(together[i]->lane(draft_len, draft.data() + i * kVocab, rows));
    lanes.back().draft_stride = kLanes * kVocab;
    rows += draft_len + 1;
  }
  const Floats target_logits = normal_floats(std::size_t(rows) * kVocab, 2, 2.0f);
  Guarded<float> target(*backend_, target_logits);
  backend_->begin_batch(lanes);
  for (int depth = 0; depth < kDepths; ++depth) {
    backend_->propose({0, kLanes, depth, draft.data() + depth * kLanes * kVocab});
  }
  backend_->judge({0, kLanes, target.data()});
  EXPECT_TRUE(draft.intact() && target.intact());
  for (int i = 0; i < kLanes; ++i) {
    const int draft_len = lanes[i].draft_len;
    if (draft_len < 0) {
      EXPECT_EQ(backend_->end_round(together[i]->round.data()).length, kHistory) << i;
      continue;
    }
    const auto row = [&](const Floats& all_rows, int index, int count) {
      const auto from = all_rows.begin() + std::ptrdiff_t{index} * kVocab;
      return Floats(from, from + std::ptrdiff_t{count} * kVocab);
    };
    Floats own;
    for (int depth = 0; depth < draft_len; ++depth) {
      const Floats one = row(draft_logits, depth * kLanes + i, 1);
      own.insert(own.end(), one.begin(), one.end());
    }
    own.resize((kDepths + 1) * kVocab);
    Guarded<float> own_draft(*backend_, own);
    Guarded<float> own_target(*backend_, row(target_logits, lanes[i].first_row, draft_len + 1));
    const RoundLane lane = alone[i]->lane(draft_len, own_draft.data());
    backend_->begin_batch({&lane, 1});
    for (int depth = 0; depth < draft_len; ++depth) {
      backend_->propose({0, 1, depth, own_draft.data() + depth * kVocab});
    }
    backend_->judge({0, 1, own_target.data()});
    EXPECT_EQ(backend_->end_round(together[i]->round.data()).length,
              backend_->end_round(alone[i]->round.data()).length)
        << i;
    EXPECT_EQ(together[i]->tokens.values(), alone[i]->tokens.values()) << i;
    EXPECT_TRUE(together[i]->intact());
  }
}

// Of sequences that choose differently, in any order, and more than a launch on a GPU gathers.
TEST_P(RoundOps, RoundsThatEndTogetherAreThoseThatEndAlone) {
  constexpr int kSequences = 300, kRows = 3;
  const std::vector<TokenRule> all = rules();
  Guarded<float> draft(*backend_, normal_floats(kRows * kVocab, 1, 2.0f));
  Guarded<float> target(*backend_, normal_floats(kRows * kVocab, 2, 2.0f));
  std::vector<std::unique_ptr<RoundSetup>> sequences;
  std::vector<const Round*> at;
  for (int i = 0; i < kSequences; ++i) {
    sequences.push_back(std::make_unique<RoundSetup>(*backend_, all[i % all.size()]));
    const int drafted = i % kRows;
    const RoundLane lane = sequences[i]->lane(drafted, draft.data());
    backend_->begin_batch({&lane, 1});
    for (int row = 0; row < drafted; ++row) {
      backend_->propose({0, 1, row, draft.data() + std::ptrdiff_t{row} * kVocab});
    }
    backend_->judge({0, 1, target.data()});
    at.push_back(sequences[i]->round.data());
  }
  std::ranges::reverse(at);
  for (const std::size_t count : {0, 1, 2, kSequences}) {
    std::vector<Round> together(count);
    backend_->end_rounds(std::span(at).first(count), together);
    for (std::size_t i = 0; i < count; ++i) {
      const Round alone = backend_->end_round(at[i]);
      EXPECT_EQ(together[i].length, alone.length) << i;
      EXPECT_EQ(together[i].drafted, 0) << i;
      EXPECT_EQ(together[i].accepted, alone.accepted) << i;
      EXPECT_EQ(together[i].length, kHistory + alone.accepted + 1) << i;
      EXPECT_TRUE(std::equal(alone.added, alone.added + alone.accepted + 1, together[i].added));
    }
  }
  for (const auto& sequence : sequences) EXPECT_TRUE(sequence->intact());
}

// It may show where tokens are chosen, or at the round's end.
TEST_P(RoundOps, LogitsThatAreNoNumbersEndTheRoundWithAnError) {
  for (const TokenRule& rule : rules()) {
    if (rule.simulated_acceptance >= 0) continue;
    for (const float bad : {std::nanf(""), INFINITY}) {
      for (const bool in_draft : {false, true}) {
        RoundSetup good(*backend_, rule), setup(*backend_, rule);
        Floats logits = normal_floats(kVocab, 1), target_logits = normal_floats(2 * kVocab, 2);
        (in_draft ? logits : target_logits)[500] = bad;
        Guarded<float> draft(*backend_, logits), target(*backend_, target_logits);
        try {
          const RoundLane lane = setup.lane(1, draft.data());
          backend_->begin_batch({&lane, 1});
          backend_->propose({0, 1, 0, draft.data()});
          backend_->judge({0, 1, target.data()});
          const Round* const rounds[] = {good.round.data(), setup.round.data()};
          Round results[2];
          backend_->end_rounds(rounds, results);
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile) << error.what();
        }
        EXPECT_TRUE(setup.intact());
      }
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(RoundOps);

}  // namespace
}  // namespace quantspec
