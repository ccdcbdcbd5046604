// Sampling and acceptance on the GPU against sampler/ and speculative/.
#include "backend/cuda/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/sampling_test_support.h"
#include "base/exponential.h"
#include "base/random.h"
#include "sampler/acceptance.h"
#include "sampler/sampler.h"

namespace quantspec {
namespace {

TEST_F(CudaSampling, RandomWordsAndVariatesHaveTheBitsOfTheCpu) {
  constexpr int kCount = 100'000;
  Array<std::uint32_t> words(device(), std::vector<std::uint32_t>(kCount));
  Array<float> variates(device(), std::vector<float>(kCount));
  for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1} << 63 | 12345}) {
    for (std::int64_t position : {std::int64_t{0}, std::int64_t{77}, std::int64_t{5} << 33}) {
      for (auto stream : {RandomStream::kSample, RandomStream::kDraft, RandomStream::kAccept,
                          RandomStream::kResidual}) {
        cuda::random_words(device(), seed, position, stream, kCount, words.data(), variates.data());
        const auto actual = words.get();
        const auto variate = variates.get();
        for (int i = 0; i < kCount; ++i) {
          const std::uint32_t word = CounterRng(seed).bits(position, stream, i);
          ASSERT_EQ(actual[i], word);
          ASSERT_EQ(variate[i], exponential(word));
        }
      }
    }
  }
}

TEST_F(CudaSampling, ArgmaxEqualsTheCpu) {
  for (int vocab_size : {1, 3, 15, 16, 1000, 32'000, 50'257, 128'256}) {
    for (int rows : {1, 2, 5, 17}) {
      std::vector<float> logits;
      for (int row = 0; row < rows; ++row) {
        auto more = random_logits(vocab_size);
        const auto most = *std::ranges::max_element(more);
        for (int tie = 0; tie < 3; ++tie) more[engine_() % vocab_size] = most;
        if (vocab_size > 3) more[engine_() % vocab_size] = -kInfinity;
        if (row == 1) {  // zeros of both signs are equal
          for (float& logit : more) logit = engine_() % 2 ? 0.0f : -0.0f;
        }
        logits.insert(logits.end(), more.begin(), more.end());
      }
      Array<float> there(device(), logits);
      Array<TokenId> chosen(device(), std::vector<TokenId>(rows, -1));
      Array<int> status(device(), {0});
      cuda::argmax_rows(device(), there.data(), rows, vocab_size, chosen.data(), status.data());
      const auto actual = chosen.get();
      for (int row = 0; row < rows; ++row) {
        EXPECT_EQ(actual[row], argmax(std::span(logits).subspan(row * vocab_size, vocab_size)))
            << vocab_size << " row " << row;
      }
      EXPECT_EQ(status.get()[0], 0);
    }
  }
}

TEST_F(CudaSampling, LogitsThatAreNoNumbersAreReported) {
  SamplerScratch scratch;
  for (int vocab_size : {21, 5000}) {
    for (float bad : {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity}) {
      auto logits = random_logits(vocab_size);
      if (bad == -kInfinity) {
        std::ranges::fill(logits, bad);
      } else {
        logits[engine_() % vocab_size] = bad;
      }
      std::string expected;
      try {
        argmax(logits);
      } catch (const Error& error) {
        expected = error.what();
      }
      Array<float> there(device(), logits);
      for (int function = 0; function < 4; ++function) {
        Sequence sequence(device(), vocab_size, {.top_k = 3, .top_p = 0.5f});
        there.set(logits);
        if (function == 0) cuda::draft_argmax(device(), sequence.view(true, 2), 0, there.data());
        if (function == 1)
          cuda::draft_distribution(device(), sequence.view(false, 2), 0, there.data());
        if (function == 2)
          cuda::target_distributions(device(), sequence.view(false), there.data(), 1);
        if (function == 3) cuda::accept_argmax(device(), sequence.view(true), there.data(), 1);
        EXPECT_EQ(error_of(sequence.round().status, vocab_size), expected) << function;
        for (TokenId token : sequence.tokens()) EXPECT_LT(token, vocab_size);
      }
    }
  }
}

class Distributions : public CudaSampling {
 protected:
  // One row, as a draft's; how many of the probabilities differ from the CPU's.
  int differing(const SamplingParams& params, const std::vector<TokenId>& history,
                const std::vector<float>& logits, const std::vector<LogitBias>& biases = {},
                int prompt_length = 0) {
    const int vocab_size = static_cast<int>(logits.size());
    Sequence sequence(device(), vocab_size, params, SpecSampling::kRejection, history);
    Array<LogitBias> there(device(), biases.empty() ? std::vector<LogitBias>(1) : biases);
    sequence.bias(there.data(), static_cast<int>(biases.size()), prompt_length);
    Array<float> row(device(), logits);
    cuda::draft_distribution(device(), sequence.view(false, 2), 0, row.data());
    auto expected = logits;
    SamplerScratch scratch;
    to_probabilities(params, {history, history.size() - prompt_length, biases}, expected, scratch);
    const auto actual = row.get();
    int differing = 0;
    for (int i = 0; i < vocab_size; ++i) {
      differing += actual[i] != expected[i];
      EXPECT_NEAR(actual[i], expected[i], 3e-7 * expected[i]) << "id " << i << " of " << vocab_size;
      if (testing::Test::HasFailure()) return vocab_size;
    }
    EXPECT_EQ(sequence.round().status, 0);
    return differing;
  }
};

TEST_F(Distributions, EqualTheCpus) {
  int rows = 0, rows_differing = 0;
  // The last is too large for shared memory.
  for (int vocab_size : {1, 2, 31, 700, 4096, 32'000, 50'257, 128'256, 500'002}) {
    for (int trial = 0; trial < trials(vocab_size > 5000 ? 30 : 150); ++trial) {
      const auto logits = random_logits(vocab_size, 0.5f + static_cast<float>(engine_() % 8));
      const auto history = random_tokens(static_cast<int>(engine_() % 90), vocab_size);
      const SamplingParams params = random_params(vocab_size);
      ++rows;
      const int prompt_length = static_cast<int>(engine_() % (history.size() + 1));
      rows_differing +=
          differing(params, history, logits, random_biases(vocab_size), prompt_length) > 0;
      ASSERT_FALSE(HasFailure()) << "temperature " << params.temperature << " top_k "
                                 << params.top_k << " top_p " << params.top_p << " min_p "
                                 << params.min_p << " penalty " << params.repeat_penalty << " of "
                                 << params.repeat_last_n;
    }
  }
  // The fp32 factor of a row differs where two double sums round to two sides; about never.
  EXPECT_LE(rows_differing, 2) << "of " << rows;
}

TEST_F(Distributions, RankEqualProbabilitiesById) {
  for (int vocab_size : {40, 1000, 32'000}) {
    const std::vector<float> flat(vocab_size, 1.0f);
    EXPECT_EQ(differing({.top_k = 2}, {}, flat), 0);
    EXPECT_EQ(differing({.top_k = vocab_size / 2 + 1}, {}, flat), 0);
    EXPECT_EQ(differing({.top_p = 0.45f}, {}, flat), 0);
    EXPECT_EQ(differing({.top_k = vocab_size / 2 + 1, .top_p = 0.3f}, {}, flat), 0);
    auto steps = random_logits(vocab_size);
    for (float& logit : steps) logit = std::round(logit);
    for (int top_k : {1, 3, vocab_size / 3, vocab_size / 2, vocab_size - 1}) {
      EXPECT_EQ(differing({.top_k = top_k}, {}, steps), 0) << top_k;
    }
    for (float top_p : {0.1f, 0.5f, 0.77f, 0.95f, 0.999f}) {
      EXPECT_EQ(differing({.top_p = top_p}, {}, steps), 0) << top_p;
    }
  }
}

TEST_F(Distributions, OfExtremes) {
  EXPECT_EQ(differing({.temperature = 0}, {}, {1, 3, -2, 3}), 0);
  EXPECT_EQ(differing({.temperature = 0, .repeat_penalty = 2}, {1, 1}, {2, 3, -2, 1}), 0);
  EXPECT_EQ(differing({.temperature = 1e-44f}, {}, {1, 3, -2, 2.999f}), 0);
  EXPECT_EQ(differing({}, {}, {0, -kInfinity, 0}), 0);
  EXPECT_EQ(differing({.top_k = 3}, {}, {0, -kInfinity, -200, -kInfinity}), 0);
  EXPECT_EQ(differing({.top_p = 0.25f}, {}, {0, 0, 0, 0}), 0);
  EXPECT_EQ(differing({.top_p = 0.99999994f}, {}, random_logits(32'000)), 0);
  EXPECT_EQ(differing({.top_p = 1e-6f}, {}, random_logits(32'000)), 0);
  EXPECT_EQ(differing({.min_p = 1.0f}, {}, random_logits(32'000)), 0);
  EXPECT_EQ(differing({.top_p = 0.5f}, {}, {5, -200, -300}), 0);
  const auto history = random_tokens(3000, 500);
  EXPECT_EQ(differing({.repeat_penalty = 1.7f, .repeat_last_n = -1}, history, random_logits(1000)),
            0);
  EXPECT_EQ(differing({.presence_penalty = 1.3f, .frequency_penalty = 0.01f}, history,
                      random_logits(1000), {{3, 5.0f}, {3, -kInfinity}}, 100),
            0);
}

// Row i sees the tokens up to its own place, and none of its bits is another number of rows'.
TEST_F(Distributions, OfARowDoNotDependOnTheOthers) {
  constexpr int kRows = 17, kVocab = 32'003;
  const auto tokens = random_tokens(100, kVocab);
  const SamplingParams params{.temperature = 0.8f, .top_p = 0.95f, .repeat_penalty = 1.5f};
  auto logits = random_logits(kRows * kVocab);
  for (int row = 0; row < kRows; ++row) {  // the penalty matters for what was just drafted
    for (TokenId token : tokens) logits[row * kVocab + token] += 8;
  }
  Sequence sequence(device(), kVocab, params);
  Array<float> there(device(), logits);
  sequence.set(tokens, 16);
  cuda::target_distributions(device(), sequence.view(false, kRows), there.data(), kRows);
  const auto all = there.get();
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> one(logits.begin() + row * kVocab,
                                 logits.begin() + (row + 1) * kVocab);
    const std::vector<TokenId> history(tokens.begin(), tokens.begin() + 84 + row);
    EXPECT_EQ(differing(params, history, one), 0);
    Array<float> alone(device(), one);
    sequence.set(history, 0);
    cuda::target_distributions(device(), sequence.view(false), alone.data(), 1);
    EXPECT_TRUE(std::ranges::equal(alone.get(), std::span(all).subspan(row * kVocab, kVocab)));
  }
  // Rows after the drafted ones are left alone.
  sequence.set(tokens, 3);
  there.set(logits);
  cuda::target_distributions(device(), sequence.view(false, kRows), there.data(), kRows);
  const auto some = there.get();
  EXPECT_TRUE(std::equal(some.begin() + 4 * kVocab, some.end(), logits.begin() + 4 * kVocab));
  EXPECT_NE(some[3 * kVocab], logits[3 * kVocab]);
}

TEST_F(CudaSampling, DraftTokenEqualsTheCpus) {
  for (int vocab_size : {1, 8, 600, 32'000, 50'257, 128'256}) {
    for (int row = 0; row < 5; ++row) {
      const auto probs = random_probs(vocab_size);
      Array<float> there(device(), probs);
      const SamplingParams params{.seed = engine_()};
      for (SpecSampling mode : {SpecSampling::kRejection, SpecSampling::kCoupled}) {
        Sequence sequence(device(), vocab_size, params, mode);
        for (int draw = 0; draw < trials(300); ++draw) {
          const int position = static_cast<int>(engine_() % 4000);
          sequence.set_round(position / 2, position - position / 2);
          cuda::draft_token(device(), sequence.view(false, 2), 0, there.data());
          const auto tokens = sequence.tokens();
          ASSERT_EQ(tokens.size(), position + 1);
          ASSERT_EQ(tokens.back(), draft_token(mode, probs, CounterRng(params.seed), position))
              << vocab_size << " position " << position;
        }
      }
    }
  }
}

class Acceptances : public CudaSampling {
 protected:
  // draft_len tokens drafted after `length` committed ones, judged by the GPU in a launch of `rows`
  // and by the CPU.
  void play(SpecSampling mode, int vocab_size, int draft_len, int rows, bool close) {
    const SamplingParams params{.seed = engine_()};
    const CounterRng rng(params.seed);
    const int length = 1 + static_cast<int>(engine_() % 100);
    auto tokens = random_tokens(length, vocab_size);
    std::vector<float> draft, target;
    for (int row = 0; row < rows; ++row) {
      const auto probs = random_probs(vocab_size);
      auto other = random_probs(vocab_size);
      if (close) {  // as a draft is: sometimes the same
        const float share = engine_() % 3 == 0 ? 0.0f : 0.1f;
        for (int i = 0; i < vocab_size; ++i) {
          other[i] = (1 - share) * probs[i] + share * other[i];
        }
      }
      draft.insert(draft.end(), probs.begin(), probs.end());
      target.insert(target.end(), other.begin(), other.end());
      if (row < draft_len) tokens.push_back(draft_token(mode, probs, rng, length + row));
    }
    const std::vector<TokenId> drafted(tokens.begin() + length, tokens.end());
    const Acceptance expected =
        accept(mode, {draft.data(), draft_len, vocab_size},
               {target.data(), draft_len + 1, vocab_size}, drafted, rng, length);

    Sequence sequence(device(), vocab_size, params, mode);
    sequence.set(tokens, draft_len);
    Array<float> draft_there(device(), draft), target_there(device(), target);
    cuda::accept(device(), sequence.view(false, rows, draft_there.data()), target_there.data(),
                 rows);
    tokens.resize(length + expected.accepted);
    tokens.push_back(expected.next);
    expect_committed(sequence, tokens, expected, length);
    const Round round = sequence.round();
    EXPECT_TRUE(std::equal(drafted.begin() + expected.accepted, drafted.end(), round.rejected));
    accepted_ += expected.accepted;
    rejected_ += expected.accepted < draft_len;
  }

  void expect_committed(const Sequence& sequence, const std::vector<TokenId>& tokens,
                        Acceptance expected, int length) {
    const Round round = sequence.round();
    EXPECT_EQ(round.accepted, expected.accepted);
    EXPECT_EQ(round.added[expected.accepted], expected.next);
    EXPECT_EQ(round.length, tokens.size());
    EXPECT_EQ(round.drafted, 0);
    EXPECT_EQ(round.arrived, 0);
    EXPECT_EQ(round.status, 0);
    EXPECT_EQ(sequence.tokens(), tokens);
    EXPECT_TRUE(std::equal(tokens.begin() + length, tokens.end(), round.added));
  }
  int accepted_ = 0, rejected_ = 0;
};

TEST_F(Acceptances, EqualTheCpus) {
  for (SpecSampling mode : {SpecSampling::kRejection, SpecSampling::kCoupled}) {
    for (int round = 0; round < trials(3000) && !HasFailure(); ++round) {
      const int vocab_size = 1 + static_cast<int>(engine_() % 300);
      const int rows = 1 + static_cast<int>(engine_() % 17);
      play(mode, vocab_size, static_cast<int>(engine_() % rows), rows, round % 8 != 0);
    }
    for (int round = 0; round < trials(30) && !HasFailure(); ++round) {
      play(mode, round % 2 ? 32'000 : 50'257, round % 5, 5, true);
    }
  }
  EXPECT_GT(accepted_, trials(3000));
  EXPECT_GT(rejected_, trials(1000));
}

TEST_F(Acceptances, ByArgmaxAreTheLongestAgreeingRun) {
  for (int vocab_size : {2, 1000, 32'000}) {
    for (int round = 0; round < trials(100); ++round) {
      const int rows = 1 + static_cast<int>(engine_() % 17);
      const int draft_len = static_cast<int>(engine_() % rows);
      const int length = 1 + static_cast<int>(engine_() % 100);
      const auto logits = random_logits(rows * vocab_size);
      auto tokens = random_tokens(length, vocab_size);
      std::vector<TokenId> choices;
      for (int row = 0; row <= draft_len; ++row) {
        choices.push_back(argmax(std::span(logits).subspan(row * vocab_size, vocab_size)));
        const bool agrees = engine_() % 8 != 0;
        if (row < draft_len) tokens.push_back((choices.back() + !agrees) % vocab_size);
      }
      const Acceptance expected =
          accept_matching(std::span<const TokenId>(tokens).subspan(length), choices);
      Sequence sequence(device(), vocab_size, {});
      sequence.set(tokens, draft_len);
      Array<float> there(device(), logits);
      cuda::accept_argmax(device(), sequence.view(true, rows), there.data(), rows);
      tokens.resize(length + expected.accepted);
      tokens.push_back(expected.next);
      expect_committed(sequence, tokens, expected, length);
    }
  }
}

TEST_F(Acceptances, ReportADraftThatCannotBe) {
  Sequence sequence(device(), 2, {});
  sequence.set({1, 1}, 1);
  Array<float> draft(device(), {1, 0}), target(device(), {0.5f, 0.5f, 0.5f, 0.5f});
  cuda::accept(device(), sequence.view(false, 2, draft.data()), target.data(), 2);
  EXPECT_EQ(sequence.round().status, static_cast<int>(cuda::SamplingStatus::kImpossibleDraft));
  EXPECT_THROW(cuda::require_chosen(sequence.round().status, 2), Error);
}

TEST_F(Acceptances, AreSimulatedWhereTheRuleSaysSo) {
  constexpr int kVocab = 50, kRows = 6;
  const auto probs = random_probs(kVocab);
  std::vector<float> rows;
  for (int row = 0; row < kRows; ++row) rows.insert(rows.end(), probs.begin(), probs.end());
  Array<float> there(device(), rows);
  for (SpecSampling mode : {SpecSampling::kRejection, SpecSampling::kCoupled}) {
    for (bool greedy : {false, true}) {
      int accepted = 0, judged = 0;
      Sequence sequence(device(), kVocab, {.temperature = greedy ? 0.0f : 1.0f}, mode);
      sequence.simulate(0.8f);
      for (int round = 0; round < trials(400); ++round) {
        sequence.set_round(1 + kRows * round, 0);
        for (int row = 0; row + 1 < kRows; ++row) {
          cuda::draft_token(device(), sequence.view(false, kRows), row, there.data());
        }
        const auto lanes = sequence.view(greedy, kRows, there.data());
        if (greedy) cuda::accept_argmax(device(), lanes, there.data(), kRows);
        if (!greedy) cuda::accept(device(), lanes, there.data(), kRows);
        const int run = sequence.round().accepted;
        accepted += run;
        judged += std::min(run + 1, kRows - 1);
      }
      EXPECT_NEAR(static_cast<double>(accepted) / judged, 0.8,
                  4.5 * std::sqrt(0.2 * 0.8 / judged));  // of 400 rounds: 0.05
    }
  }
}

// Rounds replayed as a graph, whose tokens, positions and randomness go on from where the last
// ended, against the same with the CPU's functions.
TEST_F(CudaSampling, RoundsReplayFromAGraph) {
  constexpr int kVocab = 5000, kDraftLen = 3, kRows = kDraftLen + 1;
  const int rounds = trials(60);
  const auto target_logits = random_logits(kRows * kVocab, 2);
  auto draft_logits = target_logits;
  for (float& logit : draft_logits) logit += 0.3f * static_cast<float>(engine_() % 100) / 100;
  Array<float> target_source(device(), target_logits), draft_source(device(), draft_logits);
  Array<float> target(device(), target_logits), draft(device(), draft_logits);
  for (SpecSampling mode : {SpecSampling::kRejection, SpecSampling::kCoupled}) {
    const SamplingParams params{.temperature = 0.7f,
                                .top_k = 100,
                                .top_p = 0.9f,
                                .repeat_penalty = 1.2f,
                                .repeat_last_n = 20,
                                .presence_penalty = 0.1f,
                                .frequency_penalty = 0.1f,
                                .seed = 99};
    Sequence sequence(device(), kVocab, params, mode, {17});

    const RoundLane lane = sequence.lane(kRows, draft.data());
    device().begin_batch({&lane, 1});
    cudaStream_t stream = device().stream();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    QUANTSPEC_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (auto [to, from] : {std::pair(&target, &target_source), std::pair(&draft, &draft_source)}) {
      QUANTSPEC_CUDA(cudaMemcpyAsync(to->data(), from->data(), kRows * kVocab * sizeof(float),
                                     cudaMemcpyDeviceToDevice, stream));
    }
    for (int i = 0; i < kDraftLen; ++i) {
      cuda::propose(device(), {0, 1, i, draft.data() + i * kVocab});
    }
    cuda::judge(device(), {0, 1, target.data()});
    QUANTSPEC_CUDA(cudaStreamEndCapture(stream, &graph));
    QUANTSPEC_CUDA(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < rounds; ++i) QUANTSPEC_CUDA(cudaGraphLaunch(replay, stream));
    const auto actual = sequence.tokens();
    QUANTSPEC_CUDA(cudaGraphExecDestroy(replay));
    QUANTSPEC_CUDA(cudaGraphDestroy(graph));

    std::vector<TokenId> expected = {17};
    SamplerScratch scratch;
    const CounterRng rng(params.seed);
    for (int i = 0; i < rounds; ++i) {
      const std::size_t length = expected.size();
      auto draft_rows = draft_logits, target_rows = target_logits;
      for (int row = 0; row < kDraftLen; ++row) {
        const auto probs = std::span(draft_rows).subspan(row * kVocab, kVocab);
        to_probabilities(params, {expected, expected.size()}, probs, scratch);
        expected.push_back(
            draft_token(mode, probs, rng, static_cast<std::int64_t>(expected.size())));
      }
      for (int row = 0; row < kRows; ++row) {
        to_probabilities(params,
                         {std::span<const TokenId>(expected).first(length + row), length + row},
                         std::span(target_rows).subspan(row * kVocab, kVocab), scratch);
      }
      const Acceptance verdict =
          accept(mode, {draft_rows.data(), kDraftLen, kVocab}, {target_rows.data(), kRows, kVocab},
                 std::span<const TokenId>(expected).subspan(length), rng,
                 static_cast<std::int64_t>(length));
      expected.resize(length + verdict.accepted);
      expected.push_back(verdict.next);
    }
    EXPECT_EQ(actual, expected);
    EXPECT_GT(actual.size(), rounds * 3 / 2);
  }
}

}  // namespace
}  // namespace quantspec
