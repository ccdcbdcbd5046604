// What tests of sampling on the GPU share: arrays and sequences on the device, and random cases.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/sampling.h"
#include "base/error.h"
#include "sampler/sampler.h"

namespace quantspec {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How many of `count` random trials a test makes: all, or the part that the environment variable
// QUANTSPEC_TRIALS names, for tools that make each of them much slower (tools/gpu_check.sh).
inline int trials(int count) {
  static const char* const share = std::getenv("QUANTSPEC_TRIALS");
  return share == nullptr ? count : std::max(1, static_cast<int>(count * std::atof(share)));
}

// An array on the device.
template <typename T>
class Array {
 public:
  Array(cuda::Device& device, const std::vector<T>& values)
      : device_(device), buffer_(device.allocate(values.size() * sizeof(T))) {
    set(values);
  }
  void set(const std::vector<T>& values) {
    device_.upload(buffer_.data(), values.data(), values.size() * sizeof(T));
  }
  std::vector<T> get() const {
    std::vector<T> values(buffer_.size() / sizeof(T));
    device_.download(values.data(), buffer_.data(), buffer_.size());
    return values;
  }
  T* data() { return buffer_.template as<T>(); }

 private:
  cuda::Device& device_;
  Buffer buffer_;
};

// A sequence on the device, for a context of 4096.
class Sequence {
 public:
  Sequence(cuda::Device& device, int vocab_size, const SamplingParams& params,
           SpecSampling mode = SpecSampling::kRejection, std::vector<TokenId> tokens = {})
      : vocab_size_(vocab_size),
        by_argmax_(TokenRule{params, mode}.by_argmax()),
        rule_(device, {TokenRule{params, mode}}),
        tokens_(device, std::vector<TokenId>(4096, -7)),
        round_(device, {Round{}}),
        lane_(device, {RoundLane{}}) {
    set(tokens, 0);
  }
  // The known tokens, the last `drafted` of them proposed.
  void set(std::vector<TokenId> tokens, int drafted) {
    set_round(static_cast<int>(tokens.size()) - drafted, drafted);
    tokens.resize(4096, -7);
    tokens_.set(tokens);
  }
  void set_round(int length, int drafted) {
    Round round{};
    round.length = length;
    round.drafted = drafted;
    round_.set({round});
  }
  void bias(const LogitBias* biases, int count, int prompt_length) {
    auto rules = rule_.get();
    rules[0].biases = biases;
    rules[0].num_biases = count;
    rules[0].prompt_length = prompt_length;
    rule_.set(rules);
  }
  void simulate(float acceptance) {
    auto rules = rule_.get();
    rules[0].simulated_acceptance = acceptance;
    rule_.set(rules);
  }
  // The one lane of a batch, which verifies so many rows. The functions by argmax take what goes by
  // it, the others what does not.
  RoundLane lane(int rows = 1, const float* draft_probs = nullptr) {
    return {{rule_.data(), by_argmax_, tokens_.data(), round_.data(), vocab_size_},
            rows - 1,
            0,
            draft_probs,
            vocab_size_};
  }
  cuda::LaneTable view(bool by_argmax, int rows = 1, const float* draft_probs = nullptr) {
    RoundLane lane = this->lane(rows, draft_probs);
    lane.at.by_argmax = by_argmax;
    lane_.set({lane});
    return {lane_.data(), 1, 0, vocab_size_};
  }
  Round round() const { return round_.get()[0]; }
  std::vector<TokenId> tokens() const {
    auto tokens = tokens_.get();
    const Round at = round();
    tokens.resize(at.length + at.drafted);
    return tokens;
  }

 private:
  int vocab_size_;
  bool by_argmax_;
  Array<TokenRule> rule_;
  Array<TokenId> tokens_;
  Array<Round> round_;
  Array<RoundLane> lane_;
};

class CudaSampling : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (cuda::unavailable(0).empty()) device_ = std::make_unique<cuda::Device>(0);
  }
  static void TearDownTestSuite() { device_.reset(); }
  void SetUp() override {
    if (device_ == nullptr) GTEST_SKIP() << "no GPU: " << cuda::unavailable(0);
    current_.emplace(device_->gpu());
  }
  cuda::Device& device() { return *device_; }
  std::mt19937 engine_{20};

  std::vector<float> random_logits(int count, float spread = 3) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(count);
    for (float& logit : logits) logit = normal(engine_);
    return logits;
  }
  std::vector<TokenId> random_tokens(int count, int vocab_size) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(engine_() % vocab_size);
    return tokens;
  }
  SamplingParams random_params(int vocab_size) {
    SamplingParams params;
    params.temperature = 0.3f + static_cast<float>(engine_() % 100) / 50;
    if (engine_() % 2) params.top_k = 1 + static_cast<int>(engine_() % (vocab_size + 3));
    if (engine_() % 2) params.top_k = std::min(params.top_k, 50);
    if (engine_() % 2) params.top_p = 0.05f + static_cast<float>(engine_() % 95) / 100;
    if (engine_() % 3 == 0) params.min_p = static_cast<float>(engine_() % 50) / 1000;
    if (engine_() % 2) params.repeat_penalty = 1.3f;
    params.repeat_last_n = static_cast<int>(engine_() % 80) - 1;
    if (engine_() % 3 == 0) params.presence_penalty = static_cast<float>(engine_() % 400) / 100 - 2;
    if (engine_() % 3 == 0) params.frequency_penalty = static_cast<float>(engine_() % 9) / 8;
    params.seed = engine_();
    return params;
  }
  // Of different tokens, but for such that are forbidden.
  std::vector<LogitBias> random_biases(int vocab_size) {
    std::vector<LogitBias> biases;
    const int step = 1 + vocab_size / 100;
    for (TokenId id = 0; engine_() % 2 == 0 && id < vocab_size; id += step) {
      biases.push_back({id, static_cast<float>(engine_() % 200) / 10 - 10});
      if (id > 0 && engine_() % 4 == 0) biases.push_back({id, -kInfinity});
    }
    return biases;
  }
  // A distribution: softmax of random logits, sometimes with most tokens removed.
  std::vector<float> random_probs(int vocab_size) {
    auto probs = random_logits(vocab_size, 1 + static_cast<float>(engine_() % 4));
    SamplerScratch scratch;
    SamplingParams params;
    if (engine_() % 2) params.top_p = 0.9f;
    to_probabilities(params, {}, probs, scratch);
    return probs;
  }
  std::string error_of(int status, int vocab_size) {
    try {
      cuda::require_chosen(status, vocab_size);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile);
      return error.what();
    }
    return "";
  }

 private:
  static inline std::unique_ptr<cuda::Device> device_;
  std::optional<cuda::CurrentGpu> current_;
};

}  // namespace quantspec
