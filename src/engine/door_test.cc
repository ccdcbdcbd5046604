// Engine::submit(): what its header says of requests, handles and callbacks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/expect_error.h"
#include "engine/fields.h"
#include "engine/request_loop.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

constexpr const char* kPrompt = "It was a dark night, and the wind";

GenerateOptions coupled(int predict, std::optional<int> draft_len = {}) {
  GenerateOptions options;
  options.predict = predict;
  options.sampling.temperature = 0.7f;
  options.sampling.seed = 5;
  options.spec_sampling = SpecSampling::kCoupled;
  options.draft_len = draft_len;
  options.ignore_eos = true;
  options.log_probs = true;
  options.top_log_probs = 3;
  return options;
}

// What one request was told, and a way to wait for its end.
class Reader {
 public:
  Listener listener() {
    return {.on_token =
                [this](const TokenEvent& event) {
                  const std::lock_guard lock(mutex_);
                  text += event.text;
                  if (!event.more_text) {
                    tokens.push_back(event.id);
                    log_probs.push_back(event.log_prob.value_or(1));
                  }
                  changed_.notify_all();
                  return true;
                },
            .on_end =
                [this](const Outcome& outcome) {
                  const std::lock_guard lock(mutex_);
                  ++ends;
                  this->outcome = outcome;
                  changed_.notify_all();
                }};
  }
  // It throws nothing that the request ended by.
  const Outcome& end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ends > 0; });
    return outcome;
  }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens.size() >= count || ends > 0; });
  }

  std::string text;
  std::vector<TokenId> tokens;
  std::vector<float> log_probs;
  int ends = 0;
  Outcome outcome;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class Door : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = Engine::load(bundled()).release(); }
  static void TearDownTestSuite() { delete engine_; }
  static GenerateResult alone(GenerateOptions options, std::string_view prompt = kPrompt) {
    options.draft_len = 0;
    return engine_->create_session()->generate(prompt, options);
  }
  static Engine* engine_;
};
Engine* Door::engine_ = nullptr;

TEST_F(Door, ARequestIsToldItsTextAndItsEnd) {
  Reader reader;
  const Ticket ticket = engine_->submit(kPrompt, coupled(40), reader.listener());
  const Outcome& outcome = reader.end();
  ASSERT_FALSE(outcome.error);
  const GenerateResult expected = alone(coupled(40));
  EXPECT_EQ(outcome.result.text, expected.text);
  EXPECT_EQ(outcome.result.tokens, expected.tokens);
  EXPECT_EQ(outcome.result.log_probs, expected.log_probs);
  EXPECT_EQ(outcome.result.log_probs.size(), 40u);
  EXPECT_EQ(outcome.result.stop_reason, StopReason::kLength);
  EXPECT_EQ(reader.text, expected.text);
  EXPECT_EQ(reader.tokens, expected.tokens);
  EXPECT_EQ(reader.log_probs, expected.log_probs);
  EXPECT_EQ(reader.ends, 1);
  ticket.cancel();  // of a request that has ended nothing happens
  Reader ids;
  engine_->submit(engine_->encode(kPrompt, true, 100), coupled(40), ids.listener());
  EXPECT_EQ(ids.end().result.text, expected.text);
}

// Each where a round of drafts goes beyond it, and beside others: text, tokens, log-probabilities
// and reason are those of plain decoding alone.
TEST_F(Door, BiasesForceAndForbidAndAnswersHaveTheirLeastTokens) {
  GenerateOptions options = coupled(40);
  const GenerateResult whole = alone(options);
  const TokenId often = *std::ranges::max_element(
      whole.tokens, {}, [&](TokenId id) { return std::ranges::count(whole.tokens, id); });
  options.logit_bias = {{often, -100}};
  EXPECT_EQ(std::ranges::count(alone(options).tokens, often), 0);
  options.logit_bias = {{often, 100}};
  EXPECT_EQ(alone(options).tokens, std::vector<TokenId>(40, often));
  // Of log-probabilities biases are no part: the likeliest at the first place stay what they were.
  const std::vector<TokenLogProb> likeliest = alone(options).top_log_probs;
  EXPECT_TRUE(std::equal(likeliest.begin(), likeliest.begin() + 3, whole.top_log_probs.begin()));
  // A bias of 2 a time is outweighed after 100 of them.
  options.predict = 200;
  options.sampling.frequency_penalty = 2;
  const std::vector<TokenId> tokens = alone(options).tokens;
  EXPECT_EQ(std::count(tokens.begin(), tokens.begin() + 20, often), 20);
  EXPECT_LT(std::ranges::count(tokens, often), 100);

  options = coupled(40);
  options.stop_ids = {whole.tokens[0], whole.tokens[1]};
  EXPECT_EQ(alone(options).tokens.size(), 1u);
  options.min_tokens = 25;
  EXPECT_GE(alone(options).tokens.size(), 25u);
  for (const auto& [bias, what] :
       {std::pair(LogitBias{-1, 1}, "-1 is no token"), {LogitBias{1, 101}, "from -100 to 100"}}) {
    options.logit_bias = {bias};
    expect_error(ErrorKind::kInvalidRequest, {"logit bias", what}, [&] { alone(options); });
  }
}

// The first is the one that greedy decoding chooses, and what biases and penalties do is no part.
TEST_F(Door, TheLikeliestComeWithEachToken) {
  GenerateOptions options = coupled(40, 6);
  options.sampling.temperature = 0;
  const GenerateResult greedy = engine_->create_session()->generate(kPrompt, options);
  ASSERT_EQ(greedy.top_log_probs.size(), 120u);
  for (std::size_t i = 0; i < 40; ++i) {
    const TokenLogProb* const top = &greedy.top_log_probs[3 * i];
    EXPECT_EQ(top[0], (TokenLogProb{greedy.tokens[i], greedy.log_probs[i]}));
    EXPECT_GE(top[0].log_prob, top[1].log_prob);
    EXPECT_GE(top[1].log_prob, top[2].log_prob);
  }
  options.logit_bias = {{greedy.tokens[0], -100}};
  const GenerateResult other = alone(options);
  EXPECT_EQ(other.top_log_probs[0], greedy.top_log_probs[0]);
  EXPECT_NE(other.tokens[0], greedy.tokens[0]);
  for (const int count : {-1, 21}) {
    options.top_log_probs = count;
    expect_error(ErrorKind::kInvalidRequest, {"0 to 20"}, [&] { alone(options); });
  }
}

// Those of a prompt's token are those of the answer to what is before it, to the bit, whatever else
// the engine does and has read before.
TEST_F(Door, APromptHasTheLogProbabilitiesOfItsBeginningsAnswers) {
  std::vector<TokenId> prompt = engine_->encode(kPrompt, true, 100);
  GenerateOptions longer = coupled(700);
  longer.sampling.temperature = 0.9f;
  const auto more = engine_->create_session()->generate(kPrompt, longer).tokens;
  prompt.insert(prompt.end(), more.begin(), more.end());  // more than a chunk
  GenerateOptions options = coupled(5);
  options.prompt_log_probs = true;
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(std::make_unique<Reader>());
    engine_->submit(prompt, options, readers.back()->listener());
    Reader rival;
    if (i > 0) engine_->submit(kPrompt, coupled(30), rival.listener());
    if (i > 0) rival.end();
  }
  GenerateOptions plain = coupled(5);
  Reader without;
  engine_->submit(prompt, plain, without.listener());
  for (const auto& reader : readers) {
    const GenerateResult& result = reader->end().result;
    ASSERT_FALSE(reader->outcome.error);
    EXPECT_EQ(result.tokens, without.end().result.tokens);
    EXPECT_EQ(result.log_probs, without.outcome.result.log_probs);
    EXPECT_EQ(result.cached_tokens, 0);
    ASSERT_EQ(result.prompt_log_probs.log_probs.size(), prompt.size() - 1);
    ASSERT_EQ(result.prompt_log_probs.top.size(), 3 * (prompt.size() - 1));
    EXPECT_EQ(result.prompt_log_probs.log_probs,
              readers[0]->outcome.result.prompt_log_probs.log_probs);
    EXPECT_EQ(result.prompt_log_probs.top, readers[0]->outcome.result.prompt_log_probs.top);
  }
  const PromptLogProbs& read = readers[0]->outcome.result.prompt_log_probs;
  for (const std::size_t length : {1, 2, 16, 17, 18, 255, 256, 257, 600}) {
    GenerateOptions one = coupled(1);
    one.logit_bias = {{prompt[length], 100}};
    Reader reader;
    engine_->submit(std::vector(prompt.begin(), prompt.begin() + length), one, reader.listener());
    const GenerateResult& result = reader.end().result;
    EXPECT_EQ(result.tokens[0], prompt[length]);
    EXPECT_EQ(result.log_probs[0], read.log_probs[length - 1]) << length;
    EXPECT_TRUE(
        std::ranges::equal(result.top_log_probs, std::span(read.top).subspan(3 * (length - 1), 3)))
        << length;
  }
}

TEST_F(Door, EndsAreThoseOfPlainDecodingInCompanyToo) {
  const GenerateResult whole = alone(coupled(120));
  std::vector<GenerateOptions> wanted;
  for (const std::size_t at : {whole.text.size() / 4, whole.text.size() / 2}) {
    for (const std::size_t length : {1, 3, 11, 25}) {
      wanted.push_back(coupled(120));
      wanted.back().stop = {whole.text.substr(at, length), "never to be found"};
    }
  }
  for (const int index : {7, 18, 41}) {
    wanted.push_back(coupled(120));
    wanted.back().stop_ids = {whole.tokens[index]};
    wanted.push_back(coupled(index));
  }
  for (const int index : {3, 18, 70}) {  // the first come too early to end it
    wanted.push_back(coupled(120));
    wanted.back().stop_ids = {whole.tokens[index]};
    wanted.back().min_tokens = 30;
    wanted.back().stop = {whole.text.substr(whole.text.size() / 3, 9)};
    wanted.back().logit_bias = {{whole.tokens[index + 1], -100}, {whole.tokens[index + 5], 2}};
    wanted.back().sampling.frequency_penalty = 0.3f;
    wanted.push_back(wanted.back());
    wanted.back().sampling.temperature = 0;
    wanted.back().sampling.presence_penalty = -0.3f;
  }
  std::vector<GenerateResult> expected;
  for (const GenerateOptions& options : wanted) expected.push_back(alone(options));
  std::vector<std::unique_ptr<Reader>> readers;
  for (const int draft_len : {1, 6, 16, -1}) {
    readers.clear();
    for (GenerateOptions options : wanted) {
      if (draft_len >= 0) options.draft_len = draft_len;
      readers.push_back(std::make_unique<Reader>());
      engine_->submit(kPrompt, options, readers.back()->listener());
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const GenerateResult& result = readers[i]->end().result;
      EXPECT_EQ(result.text, expected[i].text);
      EXPECT_EQ(result.tokens, expected[i].tokens);
      EXPECT_EQ(result.log_probs, expected[i].log_probs);
      EXPECT_EQ(result.top_log_probs, expected[i].top_log_probs);
      EXPECT_EQ(result.stop_reason, expected[i].stop_reason);
      EXPECT_EQ(readers[i]->text, expected[i].text);
      EXPECT_EQ(readers[i]->log_probs, expected[i].log_probs);
      if (!wanted[i].stop.empty() && wanted[i].min_tokens == 0) {
        EXPECT_EQ(expected[i].text, whole.text.substr(0, whole.text.find(wanted[i].stop[0])));
      }
    }
  }
}

TEST_F(Door, SessionsOfOneEngineShareTheLoopWithSparsePlans) {
  const auto names = [&] {
    std::string all;
    for (const Plan& plan : engine_->draft_plans()) all += plan.name + " ";
    return all;
  }();
  EXPECT_NE(names.find("quantspec+sparse@1/4 "), std::string::npos) << names;
  engine_->start();
  const std::uint64_t before = engine_->requests()->statistics().turns;
  const GenerateResult first = engine_->create_session()->generate(kPrompt, coupled(30));
  const GenerateResult second = engine_->create_session()->generate(kPrompt, coupled(30));
  EXPECT_EQ(first.tokens, second.tokens);
  EXPECT_GT(engine_->requests()->statistics().turns, before);
}

TEST_F(Door, WhatIsRefusedIsRefusedAtOnceAndNobodyIsTold) {
  Reader reader;
  const auto refused = [&](std::optional<Field> field, const GenerateOptions& options,
                           std::string_view prompt) {
    try {
      engine_->submit(prompt, options, reader.listener());
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
      EXPECT_EQ(error.field(), field) << error.what();
    }
  };
  refused(std::nullopt, coupled(5), "");
  refused(field::kPredict, coupled(0), kPrompt);
  refused(field::kPredict, coupled(-2), kPrompt);
  refused(field::kDraftLen, coupled(5, 17), kPrompt);
  std::string long_prompt;
  for (int i = 0; i < 3000; ++i) long_prompt += "word ";
  refused(std::nullopt, coupled(5), long_prompt);
  EXPECT_EQ(reader.ends, 0);
}

TEST_F(Door, ACallbackThatThrowsEndsItsOwnRequestWithThatError) {
  Reader thrower, other;
  Listener throws = thrower.listener();
  throws.on_token = [calls = 0](const TokenEvent&) mutable -> bool {
    if (++calls == 4) fail(ErrorKind::kDevice, "the reader is gone");
    return true;
  };
  engine_->submit(kPrompt, coupled(40), throws);
  engine_->submit(kPrompt, coupled(40), other.listener());
  const Outcome& outcome = thrower.end();
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->kind(), ErrorKind::kDevice);
  EXPECT_STREQ(outcome.error->what(), "the reader is gone");
  EXPECT_EQ(outcome.result.tokens.size(), 4u);
  EXPECT_EQ(other.end().result.tokens, alone(coupled(40)).tokens);
}

TEST_F(Door, CallbacksMaySubmitAndMayNotWait) {
  Reader outer, inner;
  Listener listener = outer.listener();
  std::string refusal;
  listener.on_token = [&, calls = 0](const TokenEvent&) mutable {
    if (++calls != 3) return true;
    engine_->submit(kPrompt, coupled(10), inner.listener());
    try {
      engine_->create_session()->generate(kPrompt, coupled(10));
    } catch (const Error& error) {
      refusal = error.what();
    }
    return true;
  };
  engine_->submit(kPrompt, coupled(20), listener);
  EXPECT_EQ(outer.end().result.tokens.size(), 20u);
  EXPECT_EQ(inner.end().result.tokens, alone(coupled(10)).tokens);
  EXPECT_NE(refusal.find("cannot wait for a session"), std::string::npos);
}

TEST_F(Door, TicketsCancelPauseAndResume) {
  Reader reader;
  const Ticket ticket = engine_->submit(kPrompt, coupled(1000), reader.listener());
  reader.wait_for_tokens(5);
  ticket.pause();
  Reader behind;  // when it has ended, the pause has come
  engine_->submit(kPrompt, coupled(5), behind.listener());
  behind.end();
  const std::size_t paused_at = reader.tokens.size();
  Reader again;
  engine_->submit(kPrompt, coupled(50), again.listener());
  again.end();
  EXPECT_EQ(reader.tokens.size(), paused_at);
  ticket.resume();
  reader.wait_for_tokens(paused_at + 5);
  ticket.cancel();
  const GenerateResult& result = reader.end().result;
  EXPECT_EQ(result.stop_reason, StopReason::kCancelled);
  EXPECT_GE(result.tokens.size(), paused_at + 5);
  EXPECT_LT(result.tokens.size(), 1000u);
  const GenerateResult expected = alone(coupled(static_cast<int>(result.tokens.size())));
  EXPECT_EQ(result.tokens, expected.tokens);
}

TEST(Engine, EndsWhatLivesWhenItEnds) {
  Reader reader, waits;
  EngineOptions options = bundled();
  options.sequences = 1;
  auto engine = Engine::load(options);
  engine->submit(kPrompt, coupled(1900), reader.listener());
  engine->submit(kPrompt, coupled(1900), waits.listener());
  reader.wait_for_tokens(3);
  engine.reset();
  for (Reader* one : {&reader, &waits}) {
    EXPECT_EQ(one->ends, 1);
    EXPECT_EQ(one->outcome.result.stop_reason, StopReason::kCancelled);
  }
}

// Threads that submit, cancel, pause, resume, throw and wait in sessions, and an engine that ends
// while requests live: each is told its end once, and what it is told is what it gets alone. Under
// ThreadSanitizer for QUANTSPEC_SECONDS (docs/requests.md).
TEST(Engine, ThreadsComeAndGoAndEachIsToldItsEndOnce) {
  const char* wanted = std::getenv("QUANTSPEC_SECONDS");
  const double seconds = wanted != nullptr ? std::atof(wanted) : 1.5;
  auto engine = Engine::load(bundled());
  constexpr int kMost = 40;
  const std::vector<TokenId> expected =
      engine->create_session()->generate(kPrompt, coupled(kMost, 0)).tokens;
  std::atomic<int> submitted{0}, ended{0}, done{0}, thrown{0}, failed{0};
  const Stopwatch clock;
  const auto client = [&](unsigned seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int below) { return static_cast<int>(random() % below); };
    std::vector<Ticket> mine;
    while (clock.seconds() < seconds) {
      const int predict = 1 + draw(kMost);
      const auto options = coupled(predict, draw(2) == 0 ? std::optional(draw(5)) : std::nullopt);
      const int throws_at = draw(6) == 0 ? 1 + draw(10) : -1;
      const auto ends = std::make_shared<int>(0);
      Listener listener;
      listener.on_token = [&thrown, throws_at, calls = 0](const TokenEvent&) mutable -> bool {
        if (++calls != throws_at) return true;
        ++thrown;
        throw std::runtime_error("thrown");
      };
      listener.on_end = [&, predict, ends](const Outcome& outcome) {
        EXPECT_EQ(++*ends, 1);
        const std::vector<TokenId>& tokens = outcome.result.tokens;
        ASSERT_LE(std::ssize(tokens), predict);
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
        if (outcome.error) {
          EXPECT_STREQ(outcome.error->what(), "who was told of tokens: thrown");
          ++failed;
        } else if (outcome.result.stop_reason != StopReason::kCancelled) {
          EXPECT_EQ(std::ssize(tokens), predict);
          ++done;
        }
        ++ended;
      };
      mine.push_back(engine->submit(kPrompt, options, std::move(listener)));
      ++submitted;
      if (draw(4) == 0) mine[draw(std::ssize(mine))].cancel();
      if (draw(3) == 0) mine[draw(std::ssize(mine))].pause();
      if (draw(8) == 0) {
        for (const Ticket& ticket : mine) ticket.resume();
      }
      if (draw(4) == 0) {  // it waits for its turn: the queue stays short
        const auto session = engine->create_session();
        EXPECT_EQ(session->generate(kPrompt, coupled(1)).tokens.at(0), expected[0]);
      }
      EXPECT_GE(engine->requests()->statistics().free_slots, 0);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(client, i + 1);
  for (std::thread& thread : threads) thread.join();
  engine.reset();
  EXPECT_EQ(ended, submitted);
  EXPECT_GT(done, 0);
  EXPECT_EQ(failed, thrown);
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST_F(Door, AnIdleEngineTakesNoTime) {
  alone(coupled(3));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.005);
}

// Each text is what it is alone, whoever else generates; and nobody waits for all others.
TEST_F(Door, ManyThreadsWaitForTheirOwnNews) {
  constexpr int kThreads = 24;
  const std::vector<TokenId> expected = alone(coupled(20)).tokens;
  std::vector<std::thread> threads;
  std::vector<std::vector<TokenId>> tokens(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&, i] { tokens[i] = engine_->create_session()->generate(kPrompt, coupled(20)).tokens; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : tokens) EXPECT_EQ(one, expected);
}

}  // namespace
}  // namespace quantspec
