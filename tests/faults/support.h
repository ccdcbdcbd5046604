// What tests of faults share: a loop of a tiny model, requests, and what they were told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/request_loop.h"
#include "tests/model_support.h"

namespace quantspec::testing {

using Tokens = std::vector<TokenId>;

inline constexpr int kPage = 32;
inline constexpr int kChunk = 2 * kPage;
inline constexpr int kContext = 7 * kChunk;

// What a request was told.
struct Told {
  Tokens tokens = {};
  std::vector<float> log_probs = {};
  std::vector<Request::Ended> ends = {};

  void add(const Step& step) {
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    log_probs.insert(log_probs.end(), step.log_probs.begin(), step.log_probs.end());
  }
  void expect_prefix_of(const Told& other) const {
    ASSERT_LE(tokens.size(), other.tokens.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), other.tokens.begin()));
    EXPECT_TRUE(std::equal(log_probs.begin(), log_probs.end(), other.log_probs.begin()));
  }
};

class Faults : public ::testing::Test {
 public:
  Faults() : model_(testdata("models/llama-gqa3"), "cpu", 1, kPage) {}

  RequestLoopOptions options(int sequences = 3) const {
    return {.sequences = sequences,
            .context = kContext,
            .chunk = kChunk,
            .plans = {Plan::draft(model_.model.config().num_layers, WeightRead::kUpper)}};
  }
  RequestLoop loop(const RequestLoopOptions& options) const {
    return RequestLoop(model_.model, model_.pool.shape(), options);
  }
  static Request request(int prompt, int predict, int first = 5) {
    Request request{.prompt = Tokens(prompt), .predict = predict};
    for (int i = 0; i < prompt; ++i) request.prompt[i] = first + i % 40;
    request.sampling.seed = 4;
    request.draft_len = 2;
    request.log_probs = true;
    return request;
  }
  // The same, telling `told`. after: runs behind every step.
  static Request telling(
      Request request, Told& told, std::function<bool()> after = [] { return true; }) {
    request.on_tokens = [&told, after = std::move(after)](const Step& step) {
      told.add(step);
      return after();
    };
    request.on_end = [&told](const Request::Ended& ended) { told.ends.push_back(ended); };
    return request;
  }
  Told alone(const Request& request) const {
    auto loop = this->loop(options(1));
    Told told;
    loop.submit(telling(request, told));
    run(loop);
    EXPECT_EQ(told.ends.size(), 1u);
    return told;
  }
  static void run(RequestLoop& loop) {
    while (loop.step()) loop.check_integrity();
  }
  static void expect_end(const Told& told, RequestEnd how) {
    ASSERT_EQ(told.ends.size(), 1u);
    EXPECT_EQ(told.ends[0].end, how);
  }
  static void expect_failed(const Told& told, ErrorKind kind, std::string_view text) {
    expect_end(told, RequestEnd::kFailed);
    ASSERT_TRUE(told.ends[0].error);
    EXPECT_EQ(told.ends[0].error->kind(), kind);
    EXPECT_NE(std::string_view(told.ends[0].error->what()).find(text), std::string_view::npos)
        << told.ends[0].error->what();
  }
  static void expect_idle(const RequestLoop& loop, int slots, std::size_t pages) {
    const RequestLoop::Statistics now = loop.statistics();
    EXPECT_EQ(now.free_slots, slots);
    EXPECT_EQ(now.free_pages + now.prefixes.idle_pages, pages);
    EXPECT_EQ(now.scheduler.waiting + now.scheduler.preempted + now.scheduler.admitted, 0u);
  }

  LoadedModel model_;
};

}  // namespace quantspec::testing
