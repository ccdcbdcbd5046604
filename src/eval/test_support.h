// Tiny models and texts for the tests of measurements.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/expect_error.h"
#include "base/test_folder.h"
#include "eval/eval.h"
#include "eval/metrics.h"
#include "tests/model_support.h"

namespace quantspec::testing::eval {

inline constexpr int kPageSize = 32;

inline LoadedModel tiny(const std::string& backend) {
  return LoadedModel(testing::testdata("models/llama-gqa3"), backend, 1, kPageSize);
}

inline EvalModel eval_model(LoadedModel& loaded) { return {loaded.model, loaded.pool}; }

inline std::vector<TokenId> some_tokens(int count, int vocab, int salt = 0) {
  std::vector<TokenId> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = (i * i + 7 * i + 3 + salt * (i % 5)) % vocab;
  return tokens;
}

inline std::vector<Prompt> prompts(const LoadedModel& loaded, int count, int length,
                                   int continuation) {
  std::vector<Prompt> result;
  for (int i = 0; i < count; ++i) {
    auto tokens = some_tokens(length + continuation, loaded.model.config().vocab_size, i);
    result.push_back({"text " + std::to_string(i),
                      {tokens.begin(), tokens.begin() + length},
                      {tokens.begin() + length, tokens.end()}});
  }
  return result;
}

// What a model says after the prompt and after each true token but the last, one at a time.
inline std::vector<Distribution> forced_one_by_one(LoadedModel& loaded, const Prompt& prompt,
                                                   const Plan& plan, const KvOptions& options) {
  const std::size_t tokens = prompt.tokens.size() + prompt.continuation.size();
  KvCache cache(*loaded.backend, loaded.pool, static_cast<int>(tokens), options);
  std::vector<float> logits(loaded.model.config().vocab_size);
  loaded.model.prefill(prompt.tokens, cache, logits);
  std::vector<Distribution> said;
  for (std::size_t i = 0; i + 1 < prompt.continuation.size(); ++i) {
    const SequenceInput input{std::span(prompt.continuation).subspan(i, 1), &cache};
    cache.reserve(1);
    loaded.model.forward({&input, 1}, plan, logits);
    cache.settle(1);
    said.emplace_back(logits);
  }
  return said;
}

struct Ended {};

// Throws when `stage` has come to `share`.
inline ProgressCallback ends_at(std::string_view stage, double share) {
  return [=](std::string_view at, double done) {
    if (at == stage && done >= share) throw Ended();
  };
}

// A checkpoint that is written to meanwhile.
class ChangingModel : public ::testing::Test {
 protected:
  ChangingModel() {
    std::filesystem::copy(testing::testdata("models/llama-gqa3"), folder_.path());
    loaded_ = std::make_unique<LoadedModel>(folder_.path(), "cpu", 1, kPageSize);
    texts_ = prompts(*loaded_, 2, 100, 11);
  }

  // Writes to the checkpoint when `stage` has come to `share`.
  ProgressCallback writes_at(std::string_view stage, double share) {
    return [=, this](std::string_view at, double done) {
      if (at != stage || done < share) return;
      const auto now = std::filesystem::file_time_type::clock::now();
      std::filesystem::last_write_time(folder_ / "model.safetensors", now);
    };
  }
  template <typename Measure>
  void expect_reported(const Measure& measure) {
    expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "was written to"}, measure);
  }
  EvalModel model() { return eval_model(*loaded_); }
  Plan draft() const { return Plan::draft(loaded_->model.config().num_layers, WeightRead::kUpper); }

  const TestFolder folder_;
  std::unique_ptr<LoadedModel> loaded_;
  std::vector<Prompt> texts_;
};

}  // namespace quantspec::testing::eval
