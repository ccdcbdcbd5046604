// What a RequestLoop does beside what schedule_exactness_test.cc proves of its tokens.
#include "engine/request_loop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <random>

#include "base/clock.h"
#include "base/expect_error.h"
#include "base/system_memory.h"
#include "tests/model_support.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

class RequestLoopTest : public ::testing::Test {
 protected:
  RequestLoopTest() : model_(testdata("models/llama-gqa3"), "cpu", 1, 32) {}

  RequestLoopOptions options() const {
    return {.sequences = 2,
            .context = 512,
            .chunk = 64,
            .plans = {Plan::draft(model_.model.config().num_layers, WeightRead::kUpper)}};
  }
  RequestId submit(RequestLoop& loop, Tokens& tokens, int predict, int draft_len) {
    Request request;
    request.prompt = {1, 2, 3, 4, 5};
    request.predict = predict;
    request.sampling.temperature = 0;
    request.draft_len = draft_len;
    request.on_tokens = [&](const Step& step) {
      tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
      return true;
    };
    return loop.submit(std::move(request));
  }

  LoadedModel model_;
};

TEST_F(RequestLoopTest, APausedRequestWritesNothingAndGoesOnAsIfNothingHadBeen) {
  RequestLoop loop(model_.model, model_.pool.shape(), options());
  Tokens paused, other;
  const RequestId id = submit(loop, paused, 40, 2);
  submit(loop, other, 40, 2);
  while (paused.size() < 5) loop.step();
  loop.pause(id);
  const std::size_t before = paused.size();
  while (other.size() < 40) ASSERT_TRUE(loop.step());
  EXPECT_EQ(paused.size(), before);
  EXPECT_TRUE(loop.step());  // it is still there
  EXPECT_EQ(paused.size(), before);
  loop.resume(id);
  loop.resume(id + 100);  // of none that is known: nothing
  while (loop.step()) {
  }
  EXPECT_EQ(paused, other);
}

TEST_F(RequestLoopTest, CountsWhatItsRoundsDraft) {
  for (const int draft_len : {0, 3}) {
    RequestLoop loop(model_.model, model_.pool.shape(), options());
    Tokens tokens;
    submit(loop, tokens, 25, draft_len);
    while (loop.step()) {
    }
    const RequestLoop::Statistics now = loop.statistics();
    EXPECT_EQ(now.turns, now.rounds);
    EXPECT_EQ(now.turns + now.accepted, 24u);  // the first token is the prompt's
    ASSERT_EQ(now.turns_by_plan.size(), 1u);
    if (draft_len == 0) {
      EXPECT_EQ(now.drafted + now.turns_by_plan[0] + now.rejections, 0u);
    } else {
      EXPECT_GT(now.drafted, 2 * now.turns_by_plan[0]);  // always 3, but for the end
      EXPECT_LE(now.drafted, 3 * now.turns_by_plan[0]);
      EXPECT_LE(now.accepted, now.drafted);
      EXPECT_GT(now.draft_seconds, 0);
      EXPECT_LT(now.draft_seconds, now.round_seconds);
    }
  }
}

TEST_F(RequestLoopTest, PlansForOneSequenceAreRefused) {
  const PlanContext context{model_.model.config().num_layers, 32, 512, 96};
  RequestLoopOptions with = options();
  with.plans = {make_plan("streaming", context)};
  expect_error(ErrorKind::kInvalidRequest, {"plan streaming", "one sequence"},
               [&] { RequestLoop(model_.model, model_.pool.shape(), with); });
  with.plans = {make_plan("quantspec", context)};
  with.plans[0].target_full_layers = {0};
  expect_error(ErrorKind::kInvalidRequest, {"target_full_layers", "one sequence"},
               [&] { RequestLoop(model_.model, model_.pool.shape(), with); });
}

// --- random requests -----------------------------------------------------------------------------

// What a random request does, and whether it was told its end.
struct Visitor {
  RequestId id = 0;
  int tokens = 0;
  int stops_at = 0;    // tokens; then it wants no more
  int cancels_at = 0;  // tokens; 0: as soon as it came. Negative: never
  int ends = 0;
};

class RandomRequests : public RequestLoopTest {
 protected:
  static constexpr int kContext = 512, kSequences = 6;

  RandomRequests() : loop_(model_.model, model_.pool.shape(), random_options()) {
    for (Tokens& beginning : beginnings_) beginning = text(300);
  }

  RequestLoopOptions random_options() const {
    RequestLoopOptions options = RequestLoopTest::options();
    options.sequences = kSequences;
    options.context = kContext;
    options.pages = kPages;  // fewer than all could hold: some are preempted, prefixes evicted
    options.admission = Admission::kExpected;
    return options;
  }
  int uniform(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool one_in(int n) { return uniform(1, n) == 1; }
  Tokens text(int count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = uniform(0, model_.model.config().vocab_size - 1);
    return tokens;
  }

  void submit_one() {
    Visitor& visitor = *visitors_.emplace_back(std::make_unique<Visitor>());
    Request request;
    if (!one_in(4)) {
      request.prompt = beginnings_[uniform(0, 2)];
      request.prompt.resize(uniform(1, 300));
    }
    const Tokens own = text(uniform(1, 40));
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.predict = uniform(1, 24);
    request.sampling.temperature = one_in(2) ? 0.0f : 0.8f;
    request.sampling.seed = 1;
    request.owner = uniform(0, 4);
    request.priority = uniform(0, 1);
    if (one_in(8)) request.salt = "another";
    visitor.stops_at = one_in(4) ? uniform(1, 24) : 1000;
    visitor.cancels_at = one_in(4) ? uniform(0, 12) : -1;
    request.on_tokens = [&visitor](const Step& step) {
      visitor.tokens += static_cast<int>(step.tokens.size());
      return visitor.tokens < visitor.stops_at;
    };
    request.on_end = [this, &visitor](const Request::Ended& end) {
      if (end.error) ADD_FAILURE() << end.error->what();
      ++visitor.ends;
      ++ended_;
    };
    visitor.id = loop_.submit(std::move(request));
  }

  void step() {
    for (const auto& visitor : visitors_) {
      const bool gives_up = visitor->cancels_at >= 0 && visitor->tokens >= visitor->cancels_at;
      if (gives_up && visitor->ends == 0) loop_.cancel(visitor->id);
    }
    if (one_in(20)) loop_.preempt(visitors_[uniform(0, std::ssize(visitors_) - 1)]->id);
    if (one_in(20)) {
      const RequestId id = visitors_[uniform(0, std::ssize(visitors_) - 1)]->id;
      loop_.pause(id);
      paused_.push_back(id);
    }
    if (one_in(5)) resume_all();
    loop_.step();
    std::erase_if(visitors_, [](const auto& visitor) {
      EXPECT_LE(visitor->ends, 1);
      return visitor->ends > 0;
    });
  }
  void resume_all() {
    for (const RequestId id : paused_) loop_.resume(id);
    paused_.clear();
  }

  // So many come and go.
  void run(int count) {
    const int before = ended_;
    for (int submitted = 0; submitted < count;) {
      for (int i = uniform(0, 4); i > 0 && submitted < count; --i, ++submitted) submit_one();
      while (std::ssize(visitors_) > 3 * kSequences) step();
      if (!visitors_.empty()) step();
    }
    resume_all();
    while (!visitors_.empty()) step();
    EXPECT_EQ(ended_ - before, count);
  }

  // Nobody is there, and nothing is lost.
  void expect_idle() {
    loop_.resume(1);
    EXPECT_FALSE(loop_.step());
    const RequestLoop::Statistics now = loop_.statistics();
    EXPECT_EQ(now.free_slots, kSequences);
    EXPECT_EQ(now.free_pages + now.prefixes.idle_pages, kPages);
    EXPECT_EQ(now.scheduler.waiting + now.scheduler.preempted + now.scheduler.admitted, 0u);
    EXPECT_EQ(now.scheduler.promised_pages, 0u);
    loop_.check_integrity();
  }

  static constexpr std::size_t kPages = 40;
  std::mt19937 random_{7};
  std::array<Tokens, 3> beginnings_;
  RequestLoop loop_;
  std::vector<std::unique_ptr<Visitor>> visitors_;  // requests refer to them
  std::vector<RequestId> paused_;
  int ended_ = 0;
};

// QUANTSPEC_RANDOM_REQUESTS=100000 is the measurement of docs/bench.md.
TEST_F(RandomRequests, LeaveNothingBehind) {
  const char* wanted = std::getenv("QUANTSPEC_RANDOM_REQUESTS");
  const int count = wanted != nullptr ? std::atoi(wanted) : 400;
  const Stopwatch clock;
  run(count / 10);
  expect_idle();
  const double tenth = static_cast<double>(peak_rss_bytes()) / 1e6;
  run(count - count / 10);
  expect_idle();
  const double all = static_cast<double>(peak_rss_bytes()) / 1e6;
  EXPECT_LT(all - tenth, 4);  // MB
  std::cout << fmt::format(
      "{} requests, {} preemptions in {:.1f} s; the most resident memory: {:.1f} MB after a tenth "
      "of them, {:.1f} MB after all\n",
      count, loop_.statistics().scheduler.preemptions, clock.seconds(), tenth, all);
}

// --- memory --------------------------------------------------------------------------------------

// The bundled model's: pages of 128 tokens, 128 channels a head.
TEST(RequestLoopMemory, EightBitPagesAdmitNearlyTwiceTheSequencesOfFp16) {
  constexpr int kContext = 32'768;
  constexpr std::size_t kBudget = 4'200'000'000;  // of which no test touches more than a little
  LoadedModel loaded(bundled_model(), "cpu", 1);
  const KvShape& shape = loaded.pool.shape();
  const auto admitted = [&](KvStore store) {
    const std::size_t ring =
        KvCache::ring_bytes_for(shape, *loaded.backend, kContext, {.store = store});
    const std::size_t pages = KvCache::page_bytes_for(shape, kContext, store);
    const int sequences = static_cast<int>(kBudget / (ring + pages));
    const std::size_t held = pages / PagePool::page_bytes(shape);
    RequestLoop loop(loaded.model, shape,
                     {.sequences = sequences,
                      .context = kContext,
                      .pages = store == KvStore::kFull ? 0 : sequences * held,
                      .store = store});
    for (int i = 0; i < 2 * sequences; ++i) {
      loop.submit({.prompt = Tokens(kContext - 8, i + 1), .predict = 8});
    }
    loop.step();
    return static_cast<int>(loop.statistics().scheduler.admitted);
  };
  const int fp16 = admitted(KvStore::kFull), int8 = admitted(KvStore::kHierarchical);
  std::cout << fmt::format(
      "{} sequences of {} tokens in {} MB: {} with fp16, {:.2f} times as many\n", int8, kContext,
      kBudget / 1'000'000, fp16, static_cast<double>(int8) / fp16);
  EXPECT_GE(int8, 1.9 * fp16);
}

}  // namespace
}  // namespace quantspec::testing
