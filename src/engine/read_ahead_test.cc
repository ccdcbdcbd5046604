// Texts that an engine reads while there is nothing else to do: who goes on with one finds it read,
// whoever comes meanwhile does not wait, and neither shows in any token.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/expect_error.h"
#include "engine/request_loop.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

using Tokens = std::vector<TokenId>;

class ReadAhead : public testing::Test {
 protected:
  // Whether it comes about in time.
  bool comes(const std::function<bool(const RequestLoop::Statistics&)>& about) const {
    for (const Stopwatch clock; clock.seconds() < 60;) {
      if (about(engine_->requests()->statistics())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  // Reading has begun or, on a GPU, may have ended.
  bool begins(std::uint64_t tokens_before = 0) const {
    return comes([&](const auto& s) {
      const std::size_t asked = s.scheduler.admitted + s.scheduler.waiting;
      EXPECT_EQ(s.reads_ahead ? asked : 0, 0u);
      return s.reads_ahead || s.ahead_tokens > tokens_before;
    });
  }
  bool is_read(std::uint64_t tokens) const {
    return comes([&](const auto& s) { return !s.reads_ahead && s.ahead_tokens >= tokens; });
  }
  Tokens text(int tokens) const {
    std::string words;
    for (int i = 0; i < tokens; ++i) words += " of night" + std::to_string(i * i % 97);
    Tokens all = engine_->encode(words, true, 1 << 20);
    all.resize(tokens);
    return all;
  }
  static Tokens with(Tokens text, const Tokens& more) {
    text.insert(text.end(), more.begin(), more.end());
    return text;
  }
  // What it is without anything that was read before.
  Tokens alone(const Tokens& prompt) const {
    GenerateOptions options = greedy(kPredict);
    options.salt = "alone";
    return engine_->create_session()->generate(prompt, options).tokens;
  }

  static constexpr int kPredict = 24;
  std::unique_ptr<Engine> engine_ = Engine::load(bundled());
};

TEST_F(ReadAhead, WhoGoesOnFindsTheAnswerRead) {
  const Tokens prompt = text(300), more = engine_->encode(" and so he went", false, 64);
  const GenerateResult answer = engine_->create_session()->generate(prompt, greedy(100));
  const Tokens said = with(prompt, answer.tokens);
  engine_->read_ahead(said);
  ASSERT_TRUE(is_read(80));
  const Tokens next = with(said, more);
  const GenerateResult result = engine_->create_session()->generate(next, greedy(kPredict));
  EXPECT_EQ(result.cached_tokens, 400 / 16 * 16);
  EXPECT_EQ(result.tokens, alone(next));
  // It is there: there is nothing to read.
  const std::uint64_t before = engine_->requests()->statistics().ahead_tokens;
  engine_->read_ahead(said);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(engine_->requests()->statistics().ahead_tokens, before);
  // Another's is nobody's to find.
  GenerateOptions other = greedy(kPredict);
  other.salt = "other";
  EXPECT_EQ(engine_->create_session()->generate(next, other).cached_tokens, 0);
}

TEST_F(ReadAhead, WhoeverComesDoesNotWait) {
  engine_->start();
  const Tokens long_text = text(engine_->ctx_size() - 40), short_text = text(40);
  const Tokens expected = alone(short_text);
  engine_->read_ahead(long_text);
  ASSERT_TRUE(begins());
  const GenerateResult result = engine_->create_session()->generate(short_text, greedy(kPredict));
  EXPECT_EQ(result.tokens, expected);
  if (engine_->backend_name() == "cpu") {  // which takes longer than to ask
    EXPECT_EQ(engine_->requests()->statistics().ahead_tokens, 0u);
  }
  // It is read when there is time again.
  ASSERT_TRUE(is_read(1));
  EXPECT_EQ(engine_->create_session()->generate(long_text, greedy(1)).cached_tokens,
            (long_text.size() - 1) / 16 * 16);
}

TEST_F(ReadAhead, WhoGoesOnWithTheTextAtHandWaitsForIt) {
  engine_->start();
  const int size = engine_->ctx_size() - 100, read = size / 16 * 16;
  const Tokens said = text(size), next = with(said, text(50));
  engine_->read_ahead(said);
  ASSERT_TRUE(begins());
  const GenerateResult result = engine_->create_session()->generate(next, greedy(kPredict));
  EXPECT_EQ(result.cached_tokens, read);
  EXPECT_EQ(result.tokens, alone(next));
  // And where he does not, it is as if he had not come.
  Tokens other = said;
  ++other.front();
  engine_->read_ahead(other);
  ASSERT_TRUE(begins(read));
  engine_->submit(with(other, text(50)), greedy(kPredict), {}).cancel();
  ASSERT_TRUE(is_read(2 * read));
}

TEST_F(ReadAhead, WhatHasNoRoomIsNotRead) {
  engine_->start();
  engine_->read_ahead(text(engine_->ctx_size() + 100));
  engine_->read_ahead({});
  engine_->read_ahead(text(3));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const RequestLoop::Statistics now = engine_->requests()->statistics();
  EXPECT_EQ(now.ahead_tokens, 0u);
  EXPECT_FALSE(now.reads_ahead);
  expect_error(ErrorKind::kInvalidRequest, {"token -1"},
               [&] { engine_->read_ahead(Tokens(32, -1)); });
}

// The last ones are.
TEST_F(ReadAhead, OfManyTextsTheLastAreRead) {
  engine_->start();
  const int most = static_cast<int>(RequestLoop::kMostAhead);
  const Tokens kept = text(64);
  // While a request runs none is begun that later ones push out.
  const std::jthread request([&] {
    GenerateOptions options = greedy(400);
    options.salt = "alone";
    engine_->create_session()->generate(kept, options);
  });
  ASSERT_TRUE(comes([](const auto& s) { return s.scheduler.admitted > 0; }));
  for (int i = 0; i < most + 3; ++i) {
    Tokens another = kept;
    another.front() = i;
    engine_->read_ahead(another);
  }
  ASSERT_TRUE(is_read(64 * most));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(engine_->requests()->statistics().ahead_tokens, 64u * most);
}

}  // namespace
}  // namespace quantspec
