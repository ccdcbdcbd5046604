#include "sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "sampler/fields.h"
#include "sampler/parameters.h"

namespace quantspec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::mt19937& engine, int vocab_size, float spread = 3) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab_size);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

// A text and what is added to logits; of the text, `chosen` tokens are an answer's.
struct Given {
  std::vector<TokenId> history = {};
  std::size_t chosen = 0;
  std::vector<LogitBias> biases = {};
};

std::vector<float> probabilities(const SamplingParams& params, std::vector<float> row,
                                 const Given& given = {}) {
  SamplerScratch scratch;
  to_probabilities(params, {given.history, given.chosen, given.biases}, row, scratch);
  EXPECT_EQ(std::ranges::count(scratch.seen, 0), std::ssize(scratch.seen));
  return row;
}

// The definition in sampler.h, step by step, with full sorts, in double.
std::vector<double> obvious_probabilities(const SamplingParams& params,
                                          const std::vector<float>& logits, const Given& given) {
  const std::size_t n = logits.size();
  const std::vector<TokenId>& history = given.history;
  std::vector<double> x(logits.begin(), logits.end());
  for (const LogitBias& bias : given.biases) x[bias.id] += bias.add;
  const std::size_t last = params.repeat_last_n < 0
                               ? history.size()
                               : std::min<std::size_t>(history.size(), params.repeat_last_n);
  for (TokenId id : std::set<TokenId>(history.end() - last, history.end())) {
    x[id] = x[id] > 0 ? x[id] / params.repeat_penalty : x[id] * params.repeat_penalty;
  }
  std::map<TokenId, int> counts;
  for (std::size_t i = history.size() - given.chosen; i < history.size(); ++i) ++counts[history[i]];
  for (const auto& [id, count] : counts) {
    x[id] -= double{params.presence_penalty} + double{params.frequency_penalty} * count;
  }
  const double max = *std::ranges::max_element(x);
  for (double& value : x) value = std::exp((value - max) / params.temperature);
  const auto normalize = [&] {
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    for (double& value : x) value /= sum;
  };
  normalize();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return x[a] > x[b]; });
  if (params.top_k > 0) {
    for (std::size_t i = params.top_k; i < n; ++i) x[order[i]] = 0;
    normalize();
  }
  double mass = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (params.top_p < 1 && mass >= params.top_p) x[order[i]] = 0;
    mass += x[order[i]];
  }
  for (double& value : x) value = value >= params.min_p * x[order[0]] ? value : 0;
  normalize();
  return x;
}

// The probability that a chi-square variable of so many degrees exceeds `statistic`, by the
// Wilson-Hilferty normal approximation.
double chi_square_p(double statistic, int degrees) {
  const double spread = 2.0 / (9.0 * degrees);
  const double z = (std::cbrt(statistic / degrees) - (1 - spread)) / std::sqrt(spread);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// p-value of draws against probs; tokens that are expected fewer than 10 times share one cell.
double fit(const std::vector<float>& probs, const std::vector<int>& counts) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0, rare_expected = 0, rare_count = 0;
  int cells = 0;
  for (std::size_t i = 0; i < probs.size(); ++i) {
    const double expected = probs[i] * draws;
    if (expected < 10) {
      rare_expected += expected;
      rare_count += counts[i];
      continue;
    }
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rare_expected >= 1) {
    statistic += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
    ++cells;
  }
  return chi_square_p(statistic, cells - 1);
}

std::string error_of(const SamplingParams& params) {
  try {
    params.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    return error.what();
  }
  return "";
}

TEST(SamplingParams, ValidateNamesTheFlag) {
  EXPECT_EQ(error_of({}), "");
  EXPECT_NE(error_of({.temperature = -1}).find("temperature"), std::string::npos);
  EXPECT_NE(error_of({.temperature = kInfinity}).find("temperature"), std::string::npos);
  EXPECT_NE(error_of({.top_k = -1}).find("top-k"), std::string::npos);
  EXPECT_NE(error_of({.top_p = 0}).find("top-p"), std::string::npos);
  EXPECT_NE(error_of({.top_p = std::nanf("")}).find("top-p"), std::string::npos);
  EXPECT_NE(error_of({.min_p = 1.5f}).find("min-p"), std::string::npos);
  EXPECT_NE(error_of({.repeat_penalty = 0}).find("repeat penalty"), std::string::npos);
  EXPECT_NE(error_of({.repeat_last_n = -2}).find("reach of the repeat penalty"), std::string::npos);
}

// The least that is allowed makes no infinity of a logit, which was blamed on the checkpoint.
TEST(SamplingParams, AllowedPenaltiesKeepLogitsFinite) {
  EXPECT_NE(error_of({.repeat_penalty = 1e-38f}).find("from 0.01 to 100; 1 is off"),
            std::string::npos);
  EXPECT_NE(error_of({.repeat_penalty = 1e38f}).find("repeat penalty"), std::string::npos);
  for (const float penalty : {0.01f, 100.0f}) {
    EXPECT_EQ(error_of({.repeat_penalty = penalty}), "");
    EXPECT_NO_THROW(probabilities({.repeat_penalty = penalty}, {1e30f, -1e30f, 0}, {{0, 1, 2}}));
  }
}

// A backend that does not read every parameter does not compile.
TEST(SamplingParams, OneThatIsLeftOutIsSeen) {
  using P = SamplingParams;
  static_assert(!are_all_sampling_params<&P::temperature, &P::top_k>());
  static_assert(!are_all_sampling_params<&P::temperature, &P::top_k, &P::top_p, &P::min_p,
                                         &P::repeat_penalty, &P::repeat_last_n>());
  static_assert(
      !are_all_sampling_params<&P::temperature, &P::top_k, &P::top_p, &P::min_p, &P::repeat_penalty,
                               &P::repeat_last_n, &P::repeat_last_n>());
  struct WithAnother {
    float a = 1;
    int b = 2;
    bool c = false;
  };
  static_assert(sampling_fields::count<WithAnother>() == 3);
  std::vector<std::string_view> names;
  for_each_sampling_param([&](const auto& param) { names.push_back(param.name); });
  EXPECT_EQ(names.size(), kNumSamplingParams);
  EXPECT_EQ(sampling_param<&P::min_p>().field, field::kMinP);
}

TEST(ToProbabilities, EqualsTheObviousVersion) {
  std::mt19937 engine(1);
  for (int trial = 0; trial < 400; ++trial) {
    const int vocab_size = 1 + static_cast<int>(engine() % 700);
    const auto logits = random_logits(engine, vocab_size);
    std::vector<TokenId> history(engine() % 40);
    for (TokenId& id : history) id = static_cast<TokenId>(engine() % vocab_size);
    SamplingParams params;
    params.temperature = 0.3f + static_cast<float>(engine() % 100) / 50;
    if (engine() % 2) params.top_k = 1 + static_cast<int>(engine() % (vocab_size + 3));
    if (engine() % 2) params.top_p = 0.05f + static_cast<float>(engine() % 90) / 100;
    if (engine() % 2) params.min_p = static_cast<float>(engine() % 50) / 100;
    if (engine() % 2) params.repeat_penalty = 1.3f;
    params.repeat_last_n = static_cast<int>(engine() % 30) - 1;
    if (engine() % 2) params.presence_penalty = static_cast<float>(engine() % 400) / 100 - 2;
    if (engine() % 2) params.frequency_penalty = static_cast<float>(engine() % 400) / 100 - 2;
    Given given{history, engine() % (history.size() + 1)};
    for (TokenId id = 0; id < vocab_size; id += 1 + static_cast<TokenId>(engine() % 50)) {
      const bool forbids = engine() % 4 == 0 && id > 0;
      given.biases.push_back({id, forbids ? -kInfinity : static_cast<float>(engine() % 60) / 10});
    }
    if (params.top_k > vocab_size) params.top_k = vocab_size;
    const auto expected = obvious_probabilities(params, logits, given);
    const auto actual = probabilities(params, logits, given);
    for (int i = 0; i < vocab_size; ++i) {
      // fp32: the rounding of logits of up to 40 (2e-6 each side), and of exp and the sum.
      ASSERT_NEAR(actual[i], expected[i], 1e-5 * expected[i]) << "trial " << trial << " id " << i;
    }
  }
}

TEST(ToProbabilities, KeepsLargeVocabulariesExact) {
  std::mt19937 engine(2);
  const auto logits = random_logits(engine, 131'072);
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.top_k = 40}, SamplingParams{.top_p = 0.9f},
        SamplingParams{.top_k = 5000, .top_p = 0.5f, .min_p = 0.01f}}) {
    const auto expected = obvious_probabilities(params, logits, {});
    const auto actual = probabilities(params, logits);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 1e-5 * expected[i]) << i;
    }
  }
}

TEST(ToProbabilities, RanksEqualProbabilitiesById) {
  EXPECT_EQ(probabilities({.top_k = 2}, std::vector<float>(40, 1.0f))[1], 0.5f);
  EXPECT_EQ(probabilities({.top_k = 2}, std::vector<float>(40, 1.0f))[2], 0.0f);
  const auto nucleus = probabilities({.top_p = 0.45f}, std::vector<float>(4, 1.0f));
  EXPECT_EQ(nucleus, (std::vector<float>{0.5f, 0.5f, 0, 0}));
}

TEST(ToProbabilities, GreedyIsOneAtTheLowestArgmax) {
  EXPECT_EQ(probabilities({.temperature = 0}, {1, 3, -2, 3}), (std::vector<float>{0, 1, 0, 0}));
  // The penalty comes first: 3 / 2 < 2.
  EXPECT_EQ(probabilities({.temperature = 0, .repeat_penalty = 2}, {2, 3, -2, 1}, {{1, 1}}),
            (std::vector<float>{1, 0, 0, 0}));
}

TEST(ToProbabilities, CountsAreOfTheAnswerAlone) {
  const SamplingParams presence{.temperature = 0, .presence_penalty = 1.5f};
  const SamplingParams frequency{.temperature = 0, .frequency_penalty = 0.75f};
  const std::vector<float> row = {2, 3, -2, 1}, first = {1, 0, 0, 0}, second = {0, 1, 0, 0};
  EXPECT_EQ(probabilities(presence, row, {{1, 1, 2}}), second);      // a prompt's count for nothing
  EXPECT_EQ(probabilities(presence, row, {{1, 1, 2}, 1}), second);   // 2 alone
  EXPECT_EQ(probabilities(presence, row, {{1, 1, 2}, 2}), first);    // 3 - 1.5 < 2
  EXPECT_EQ(probabilities(frequency, row, {{1, 1, 2}, 2}), second);  // 3 - 0.75 > 2
  EXPECT_EQ(probabilities(frequency, row, {{1, 1, 2}, 3}), first);   // 3 - 2 * 0.75 < 2
  EXPECT_EQ(probabilities({.temperature = 0, .presence_penalty = -2}, row, {{0}, 1}), first);
}

TEST(ToProbabilities, BiasesForceAndForbid) {
  const std::vector<float> row = {2, 3, -2, 1};
  EXPECT_EQ(probabilities({.temperature = 0}, row, {.biases = {{1, -2}}}),
            (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(probabilities({}, row, {.biases = {{3, 100}}}), (std::vector<float>{0, 0, 0, 1}));
  const auto rest = probabilities({}, row, {.biases = {{1, -kInfinity}, {0, -kInfinity}}});
  EXPECT_EQ(rest[0], 0);
  EXPECT_EQ(rest[1], 0);
  EXPECT_GT(rest[3], rest[2]);
  // A token may be one of them as well as forbidden.
  EXPECT_EQ(probabilities({.temperature = 0}, row, {.biases = {{1, 50}, {1, -kInfinity}}}),
            (std::vector<float>{1, 0, 0, 0}));
}

TEST(LogProbs, EqualTheObviousVersion) {
  std::mt19937 engine(3);
  for (const int vocab_size : {1, 7, 700, 151'936}) {
    auto logits = random_logits(engine, vocab_size);
    if (vocab_size > 3) logits[engine() % vocab_size] = -kInfinity;
    const double most = *std::ranges::max_element(logits);
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - most);
    std::vector<TokenId> order(vocab_size);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
    const LogProbs row(logits);
    for (const int count : {0, 1, 5, 20}) {
      std::vector<TokenLogProb> likeliest(std::min(count, vocab_size));
      row.find(likeliest);
      for (std::size_t i = 0; i < likeliest.size(); ++i) {
        EXPECT_EQ(likeliest[i].id, order[i]);
        EXPECT_EQ(likeliest[i].log_prob, row.of(order[i]));
        if (logits[order[i]] == -kInfinity) continue;
        EXPECT_NEAR(likeliest[i].log_prob, logits[order[i]] - most - std::log(sum), 1e-5);
      }
    }
  }
}

TEST(LogProbs, EqualOnesRankByIdAndWhatCannotBeIsMinusInfinity) {
  const std::vector<float> logits = {1, 2, -kInfinity, 2, 1, 2};
  std::vector<TokenLogProb> likeliest(6);
  LogProbs(logits).find(likeliest);
  std::vector<TokenId> ids;
  for (const TokenLogProb& one : likeliest) ids.push_back(one.id);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 3, 5, 0, 4, 2}));
  EXPECT_EQ(likeliest.back().log_prob, -kInfinity);
  EXPECT_THROW(LogProbs(std::vector<float>{1, std::nanf("")}), Error);
}

TEST(LogitBiases, ValidateSaysWhatIsWrong) {
  const auto error_of = [](const LogitBiases& biases) -> std::string {
    try {
      biases.validate(100);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({.always = {{0, 100}, {99, -100}, {5, -kInfinity}}, .ends = {5, 0}}), "");
  EXPECT_EQ(error_of({.always = {{100, 1}}}), "logit bias: 100 is no token; ids go from 0 to 99");
  EXPECT_EQ(error_of({.always = {{-1, 1}}}), "logit bias: -1 is no token; ids go from 0 to 99");
  EXPECT_EQ(error_of({.always = {{7, 1}, {7, 2}}}),
            "logit bias: token 7 is there twice; give it once");
  for (const float add : {100.5f, kInfinity, std::nanf("")}) {
    EXPECT_NE(error_of({.always = {{7, add}}}).find("must be from -100 to 100"), std::string::npos);
  }
  EXPECT_NE(error_of({.min_tokens = -1}).find("least tokens is -1"), std::string::npos);
  EXPECT_NE(error_of({.ends = {100}}).find("100 is no token"), std::string::npos);
  EXPECT_NE(error_of({.ends = std::vector<TokenId>(kMostLogitBiases + 1)}).find("at most 1024"),
            std::string::npos);
}

TEST(ToProbabilities, TheSmallestTemperatureIsAlmostGreedy) {
  const auto probs = probabilities({.temperature = 1e-44f}, {1, 3, -2, 2.999f});
  EXPECT_EQ(probs, (std::vector<float>{0, 1, 0, 0}));
}

TEST(ToProbabilities, MinusInfinityIsNeverChosen) {
  const auto probs = probabilities({}, {0, -kInfinity, 0});
  EXPECT_EQ(probs, (std::vector<float>{0.5f, 0, 0.5f}));
}

TEST(ToProbabilities, RefusesLogitsThatAreNoNumbers) {
  for (float bad : {std::nanf(""), kInfinity}) {
    for (int place : {0, 7, 16, 20}) {
      std::vector<float> logits(21, 1.0f);
      logits[place] = bad;
      EXPECT_THROW(probabilities({}, logits), Error);
      EXPECT_THROW(probabilities({.temperature = 0}, logits), Error);
      EXPECT_THROW(argmax(logits), Error);
    }
  }
  EXPECT_THROW(argmax(std::vector<float>(5, -kInfinity)), Error);
}

TEST(Argmax, IsTheFirstOfTheLargest) {
  std::mt19937 engine(3);
  for (int vocab_size : {1, 15, 16, 17, 1000}) {
    auto logits = random_logits(engine, vocab_size);
    const auto expected = std::ranges::max_element(logits) - logits.begin();
    EXPECT_EQ(argmax(logits), expected);
    logits[vocab_size - 1] = logits[expected];
    EXPECT_EQ(argmax(logits), expected);
  }
}

TEST(Sample, FollowsTheDistribution) {
  std::mt19937 engine(4);
  for (int vocab_size : {2, 8, 600}) {
    const auto probs = probabilities({}, random_logits(engine, vocab_size, 2));
    std::vector<int> counts(vocab_size);
    const CounterRng rng(5);
    for (int i = 0; i < 200'000; ++i) ++counts[sample(probs, rng.uniform(i, RandomStream::kDraft))];
    EXPECT_GT(fit(probs, counts), 1e-4) << vocab_size;
  }
}

TEST(Sample, NeverReturnsAWeightOfZero) {
  constexpr float kLowest = 0x1p-24f, kHighest = 1 - 0x1p-24f;
  std::vector<float> weights(1000, 0.0f);
  weights[300] = 0.25f;
  weights[700] = 0.5f;  // not normalized
  EXPECT_EQ(sample(weights, kLowest), 300);
  EXPECT_EQ(sample(weights, 0.33f), 300);
  EXPECT_EQ(sample(weights, 0.34f), 700);
  EXPECT_EQ(sample(weights, kHighest), 700);
}

TEST(SampleCoupled, FollowsTheDistribution) {
  std::mt19937 engine(6);
  for (int vocab_size : {2, 8, 600}) {
    const auto probs = probabilities({}, random_logits(engine, vocab_size, 2));
    std::vector<int> counts(vocab_size);
    for (int i = 0; i < 200'000; ++i) ++counts[sample_coupled(probs, CounterRng(7), i)];
    EXPECT_GT(fit(probs, counts), 1e-4) << vocab_size;
  }
}

TEST(SampleCoupled, IsAPureFunctionOfSeedAndPosition) {
  std::mt19937 engine(8);
  const auto probs = probabilities({}, random_logits(engine, 1000));
  int other_seed = 0, other_position = 0;
  for (int i = 0; i < 200; ++i) {
    const TokenId token = sample_coupled(probs, CounterRng(9), i);
    EXPECT_EQ(token, sample_coupled(probs, CounterRng(9), i));
    other_seed += token != sample_coupled(probs, CounterRng(10), i);
    other_position += token != sample_coupled(probs, CounterRng(9), i + 1000);
  }
  EXPECT_GT(other_seed, 50);
  EXPECT_GT(other_position, 50);
}

// Removing tokens that did not win leaves the winner: what makes close distributions agree.
TEST(SampleCoupled, DoesNotDependOnTokensThatLose) {
  std::mt19937 engine(11);
  const CounterRng rng(12);
  for (int i = 0; i < 500; ++i) {
    auto probs = probabilities({}, random_logits(engine, 300));
    const TokenId winner = sample_coupled(probs, rng, i);
    for (int id = 0; id < 300; ++id) {
      if (id != winner && engine() % 2) probs[id] = 0;
    }
    EXPECT_EQ(sample_coupled(probs, rng, i), winner);
  }
}

// Two runs of Gumbel-max agree with probability at least (1 - d) / (1 + d), d the total variation.
TEST(SampleCoupled, AgreesOnCloseDistributions) {
  std::mt19937 engine(13);
  std::normal_distribution<float> normal(0, 0.2f);
  const auto logits = random_logits(engine, 500, 2);
  auto other_logits = logits;
  for (float& logit : other_logits) logit += normal(engine);
  const auto a = probabilities({}, logits), b = probabilities({}, other_logits);
  double distance = 0;
  for (std::size_t i = 0; i < a.size(); ++i) distance += 0.5 * std::abs(a[i] - b[i]);
  int agreed = 0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    agreed += sample_coupled(a, CounterRng(14), i) == sample_coupled(b, CounterRng(14), i);
  }
  // 0.01: three standard deviations of a share of 20'000 draws.
  EXPECT_GT(agreed / static_cast<double>(kDraws), (1 - distance) / (1 + distance) - 0.01);
}

}  // namespace
}  // namespace quantspec
