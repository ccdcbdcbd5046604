// What an engine and its sessions tell where memory is refused at the end of a text: that it ended.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"
#include "engine/engine.h"
#include "tests/faults/refusals.h"
#include "tests/model_support.h"
#include "tokenizer/tokenizer.h"

namespace quantspec::testing {
namespace {

constexpr int kTokens = 1100;  // whose ids are no small allocation

class EngineFaults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine_ = Engine::load(
        {.model = bundled_model(), .backend = "cpu", .num_threads = 1, .ctx_size = kTokens + 100});
  }
  static void TearDownTestSuite() { engine_.reset(); }
  ~EngineFaults() override { refuse_next = 0, refuse_one_in = 0; }

  static GenerateOptions options() {
    GenerateOptions options;
    options.predict = kTokens;
    options.sampling.temperature = 0;
    options.ignore_eos = true;
    options.log_probs = true;
    options.draft_len = 4;
    return options;
  }

  static std::unique_ptr<Engine> engine_;
};
std::unique_ptr<Engine> EngineFaults::engine_;

TEST_F(EngineFaults, AnEndNeedsNoMemoryForTheText) {
  std::promise<Outcome> ended;
  int count = 0;
  engine_->submit("It was a dark night", options(),
                  {.on_token =
                       [&](const TokenEvent& event) {
                         if (!event.more_text && ++count == kTokens) refuse_one_in = 1;
                         return true;
                       },
                   .on_end = [&](Outcome outcome) { ended.set_value(std::move(outcome)); }});
  auto future = ended.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::minutes(5)), std::future_status::ready);
  const Outcome outcome = future.get();
  refuse_one_in = 0;
  EXPECT_FALSE(outcome.error);
  EXPECT_EQ(outcome.result.stop_reason, StopReason::kLength);
  EXPECT_EQ(std::ssize(outcome.result.tokens), kTokens);
  EXPECT_EQ(std::ssize(outcome.result.log_probs), kTokens);
  EXPECT_GT(std::ssize(outcome.result.text), kTokens);
}

// All of the text or an error, and at last something.
TEST_F(EngineFaults, ASessionWaitsForNothingThatDoesNotCome) {
  std::promise<void> returned;
  std::thread caller([&] {
    const auto session = engine_->create_session();
    int count = 0;
    try {
      const GenerateResult result =
          session->generate("It was a dark night", options(), [&](const TokenEvent& event) {
            if (!event.more_text && ++count == kTokens - 10) refuse_one_in = 1;
            return true;
          });
      EXPECT_EQ(std::ssize(result.tokens), kTokens);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
    } catch (const std::bad_alloc&) {  // in its own thread
    }
    returned.set_value();
  });
  const bool waits =
      returned.get_future().wait_for(std::chrono::minutes(5)) != std::future_status::ready;
  refuse_one_in = 0;
  if (!waits) return caller.join();
  ADD_FAILURE() << "it waits for an end that was not told";
  std::abort();  // the thread cannot be ended
}

// Of ranks one has no memory when all make what requests need: the request fails, the ranks go on.
TEST(RankFaults, OneThatHasNoMemoryForRequestsEndsNobody) {
  // SentencePiece makes what it keeps once: ThreadSanitizer does not see its locks.
  load_tokenizer(bundled_model());
  const auto engine = Engine::load({.model = bundled_model(),
                                    .backend = "cpu",
                                    .num_threads = 1,
                                    .ranks = 2,
                                    .context_ranks = 2,
                                    .ctx_size = 1000});
  const struct Large {  // no files' buffers
    Large() { refuse_from = std::size_t{1} << 16; }
    ~Large() { refuse_from = kSmall; }
  } large;
  for (const int given : {0, 1, 2}) {
    refuse_after = given;
    refuse_next = 1;
    try {
      engine->start();
      ADD_FAILURE() << "there was memory after " << given;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
    }
    EXPECT_EQ(refuse_next, 0) << given;
    refuse_next = 0;
  }
  GenerateOptions options;
  options.predict = 5;
  const GenerateResult result = engine->create_session()->generate("It was", options);
  EXPECT_EQ(result.tokens.size(), 5u);
}

}  // namespace
}  // namespace quantspec::testing
