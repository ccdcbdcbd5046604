// What a RequestLoop does beside what schedule_exactness_test.cc proves of its tokens.
#include "engine/request_loop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>

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
  EXPECT_FALSE(loop.step());  // it is still there, and there is nothing to do
  EXPECT_EQ(paused.size(), before);
  loop.resume(id);
  loop.resume(id + 100);  // of none that is known: nothing
  while (loop.step()) {
  }
  EXPECT_EQ(paused, other);
}

// --- plans ---------------------------------------------------------------------------------------

class SharedPlans : public RequestLoopTest {
 protected:
  struct Done {
    Tokens tokens;
    std::set<int> plans;  // that drafted
    RoundStats stats;
  };
  Request request(int prompt, Done& done) const {
    Request request{.prompt = Tokens(prompt, 3), .predict = 60};
    for (int i = 0; i < prompt; ++i) request.prompt[i] = 5 + (i * i + prompt) % 40;
    request.sampling.seed = prompt;
    request.on_tokens = [&done](const Step& step) {
      done.tokens.insert(done.tokens.end(), step.tokens.begin(), step.tokens.end());
      if (step.choice.draft_len > 0) done.plans.insert(step.choice.plan);
      return true;
    };
    request.on_end = [&done](const Request::Ended& ended) { done.stats = ended.stats; };
    return request;
  }
  RequestLoopOptions with(std::vector<Plan> plans) const {
    RequestLoopOptions options = this->options();
    options.sequences = 3;
    options.plans = std::move(plans);
    return options;
  }
  PlanContext context(KvBudget budget) const {
    return {model_.model.config().num_layers, 32, budget};
  }
};

// A share is one value for all of them, and each reads so much of its own pages: it drafts in
// company what it drafts alone.
TEST_F(SharedPlans, OneSparsePlanIsForTextsOfAnyLength) {
  for (const char* name : {"quantspec+sparse", "quantspec+bounds+w8"}) {
    const RequestLoopOptions options = with({make_plan(name, context(KvBudget::one_in(2)))});
    const auto run = [&](RequestLoop& loop, int prompt, Done& done) {
      Request request = this->request(prompt, done);
      request.forced = DraftChoice{0, 4};
      loop.submit(std::move(request));
    };
    std::array<Done, 3> together, alone;
    constexpr std::array kPrompts = {1, 130, 400};
    RequestLoop loop(model_.model, model_.pool.shape(), options);
    for (int i = 0; i < 3; ++i) run(loop, kPrompts[i], together[i]);
    while (loop.step()) {
    }
    for (int i = 0; i < 3; ++i) {
      RequestLoop own(model_.model, model_.pool.shape(), options);
      run(own, kPrompts[i], alone[i]);
      while (own.step()) {
      }
      EXPECT_EQ(together[i].tokens.size(), 60u);
      EXPECT_EQ(together[i].tokens, alone[i].tokens);
      EXPECT_EQ(together[i].stats.drafted_at, alone[i].stats.drafted_at);
      EXPECT_EQ(together[i].stats.accepted_at, alone[i].stats.accepted_at);
    }
  }
}

// Where there is a choice, a sequence does without a plan until it makes a difference to it.
TEST_F(SharedPlans, AutoReadsFewPagesOfLongTextsOnly) {
  const std::vector<Plan> plans = auto_plans(context(96));
  ASSERT_EQ(plans.back().from_tokens, 160);
  RequestLoop loop(model_.model, model_.pool.shape(), with(plans));
  const auto few = [&](const Done& done) {
    return std::ranges::any_of(done.plans, [&](int plan) { return plans[plan].from_tokens > 0; });
  };
  bool tried = false;  // sooner or later, by measured times
  for (int i = 0; i < 50 && !tried; ++i) {
    Done brief, lengthy;
    loop.submit(request(20, brief));
    loop.submit(request(400, lengthy));
    while (loop.step()) {
    }
    EXPECT_FALSE(few(brief));
    EXPECT_EQ(brief.tokens.size() + lengthy.tokens.size(), 120u);
    tried = few(lengthy);
  }
  EXPECT_TRUE(tried);
}

// --- preemption ----------------------------------------------------------------------------------

class Preemption : public RequestLoopTest {
 protected:
  // Three chunks, and 8 tokens more.
  Request request(Tokens& tokens) const {
    Request request{.prompt = Tokens(200, 3), .predict = 80};
    for (std::size_t i = 0; i < request.prompt.size(); ++i) request.prompt[i] = 5 + i % 40;
    request.sampling.seed = 4;
    request.draft_len = 2;
    request.on_tokens = [&tokens](const Step& step) {
      tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
      return true;
    };
    return request;
  }
  Tokens alone() const {
    RequestLoop loop(model_.model, model_.pool.shape(), options());
    Tokens tokens;
    loop.submit(request(tokens));
    while (loop.step()) {
    }
    return tokens;
  }
  RequestLoopOptions with_host(std::size_t pages) const {
    RequestLoopOptions options = RequestLoopTest::options();
    options.pages = options.context / 32;
    options.host_bytes = pages * model_.pool.page_bytes();
    return options;
  }
  // Slots that a ring takes.
  std::size_t ring_pages() const {
    const std::size_t ring = KvCache::ring_bytes_for(model_.pool.shape(), *model_.backend, 512, {});
    return (ring + model_.pool.page_bytes() - 1) / model_.pool.page_bytes();
  }
  // Until it has so many tokens; then it is preempted, and stays so.
  RequestId preempt_after(RequestLoop& loop, Tokens& tokens, std::size_t count) const {
    const RequestId id = loop.submit(request(tokens));
    while (tokens.size() < count && loop.step()) {
    }
    EXPECT_GE(tokens.size(), count);
    loop.pause(id);
    loop.step();
    EXPECT_TRUE(loop.preempt(id));
    EXPECT_EQ(loop.statistics().free_slots, 2);
    return id;
  }
  void finish(RequestLoop& loop, RequestId id) const {
    loop.resume(id);
    while (loop.step()) loop.check_integrity();
  }
};

TEST_F(Preemption, WhatARequestHeldComesBackFromTheHost) {
  RequestLoop loop(model_.model, model_.pool.shape(), with_host(100));
  Tokens tokens;
  const RequestId id = preempt_after(loop, tokens, 70);
  const RequestLoop::Statistics before = loop.statistics();
  EXPECT_EQ(before.swaps, 1u);
  EXPECT_GE(before.pages_swapped_out, 1u);  // beyond its three chunks, which the tree has
  EXPECT_LE(before.pages_swapped_out, 2u);
  EXPECT_EQ(before.free_host_pages, 100 - ring_pages() - before.pages_swapped_out);
  EXPECT_EQ(before.free_pages + before.prefixes.idle_pages, 16u);
  const double read_for = before.slice_seconds;
  finish(loop, id);
  const RequestLoop::Statistics now = loop.statistics();
  EXPECT_EQ(tokens, alone());
  EXPECT_EQ(now.pages_swapped_in, before.pages_swapped_out);
  EXPECT_EQ(now.free_host_pages, 100u);
  EXPECT_EQ(now.replays, 0u);
  EXPECT_EQ(now.slice_seconds, read_for);  // nothing was read
}

TEST_F(Preemption, WithoutRoomThereItIsReadAgain) {
  for (const std::size_t room : {std::size_t{0}, ring_pages()}) {
    RequestLoop loop(model_.model, model_.pool.shape(), with_host(room));
    Tokens tokens;
    const RequestId id = preempt_after(loop, tokens, 70);
    EXPECT_EQ(loop.statistics().free_host_pages, room);
    finish(loop, id);
    EXPECT_EQ(tokens, alone());
    EXPECT_EQ(loop.statistics().swaps + loop.statistics().pages_swapped_out, 0u);
    EXPECT_EQ(loop.statistics().replays, 1u);
  }
}

// Others take the pages meanwhile: its chunks move to the host as well, or are lost and read again.
TEST_F(Preemption, ChunksOfItsPromptComeBackOrAreReadAgain) {
  for (const std::size_t room : {std::size_t{100}, ring_pages() + 2}) {
    RequestLoop loop(model_.model, model_.pool.shape(), with_host(room));
    Tokens tokens, others;
    const RequestId id = preempt_after(loop, tokens, 70);
    EXPECT_EQ(loop.statistics().swaps, 1u);
    Request other = request(others);
    other.prompt = Tokens(430, 1);
    loop.submit(std::move(other));
    while (others.size() < 80) ASSERT_TRUE(loop.step());
    loop.step();
    const RequestLoop::Statistics before = loop.statistics();
    EXPECT_EQ(before.prefixes.host_pages > 0, room == 100);
    finish(loop, id);
    const RequestLoop::Statistics now = loop.statistics();
    EXPECT_EQ(tokens, alone());
    EXPECT_EQ(now.pages_swapped_in, now.pages_swapped_out);
    EXPECT_EQ(now.prefixes.from_host > 0, room == 100);
    EXPECT_EQ(now.prefixes.made_tokens > before.prefixes.made_tokens, room != 100);
    EXPECT_EQ(now.replays, 0u);
    EXPECT_EQ(now.free_host_pages + now.prefixes.host_pages, room);
  }
}

TEST_F(Preemption, WhatRequestsHeldGoesBeforeCachedPrefixes) {
  RequestLoop loop(model_.model, model_.pool.shape(), with_host(ring_pages() + 2));
  Tokens others, tokens;
  for (int i = 0; i < 3; ++i) {  // fills the pages, then the host
    Request other = request(others);
    other.prompt = Tokens(300, 1 + i);
    other.predict = 1;
    loop.submit(std::move(other));
    while (loop.step()) {
    }
  }
  EXPECT_GT(loop.statistics().prefixes.host_pages, 0u);
  const RequestId id = preempt_after(loop, tokens, 70);
  EXPECT_EQ(loop.statistics().swaps, 1u);
  EXPECT_LE(loop.statistics().prefixes.host_pages, 2u);
  finish(loop, id);
  EXPECT_EQ(tokens, alone());
}

TEST_F(Preemption, WhoIsCancelledGivesItsRoomOnTheHostBack) {
  RequestLoop loop(model_.model, model_.pool.shape(), with_host(100));
  Tokens tokens;
  const RequestId id = preempt_after(loop, tokens, 40);
  EXPECT_LT(loop.statistics().free_host_pages, 100u);
  loop.cancel(id);
  while (loop.step()) {
  }
  EXPECT_EQ(loop.statistics().free_host_pages, 100u);
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

TEST_F(RequestLoopTest, KeepsWhatItsLastStepsDid) {
  RequestLoop loop(model_.model, model_.pool.shape(), options());
  EXPECT_EQ(loop.plan_names().size(), 1u);
  EXPECT_TRUE(loop.steps_after(0).empty());
  Tokens first, second;
  const RequestId one = submit(loop, first, 300, 3), other = submit(loop, second, 30, 0);
  while (loop.step()) {
  }
  const RequestLoop::Statistics now = loop.statistics();
  const std::vector<StepRecord> steps = loop.steps_after(0);
  ASSERT_GT(steps.size(), 50u);
  EXPECT_EQ(steps.front().prompt, one);
  EXPECT_EQ(steps.front().prompt_tokens, 5);
  EXPECT_EQ(steps.front().prompt_share, 1);
  std::map<RequestId, int> told, drafted;
  std::uint64_t accepted = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepRecord& step = steps[i];
    EXPECT_EQ(step.number, i + 1);
    EXPECT_GT(step.seconds, 0);
    EXPECT_LE(step.draft_seconds, step.seconds);
    if (i > 0) {
      EXPECT_GE(step.begin, steps[i - 1].begin + steps[i - 1].seconds);
    }
    for (const StepRecord::Turn& turn : step.turns) {
      EXPECT_EQ(turn.tokens, 5 + told[turn.request]);
      told[turn.request] += turn.accepted + 1;
      drafted[turn.request] += turn.choice.draft_len;
      accepted += turn.accepted;
    }
  }
  EXPECT_EQ(told[one], 299);  // the first is its prompt's
  EXPECT_EQ(told[other], 29);
  EXPECT_EQ(accepted, now.accepted);
  EXPECT_EQ(drafted[other], 0);
  EXPECT_EQ(drafted[one], static_cast<int>(now.drafted));
  EXPECT_EQ(loop.steps_after(steps.back().number - 2).size(), 2u);

  Tokens more;
  submit(loop, more, 400, 0);
  while (loop.step()) {
  }
  const std::vector<StepRecord> last = loop.steps_after(0);
  ASSERT_EQ(last.size(), RequestLoop::kKeptSteps);
  EXPECT_EQ(last.back().number - last.front().number + 1, RequestLoop::kKeptSteps);
  EXPECT_GT(last.back().number, steps.back().number);
}

TEST_F(RequestLoopTest, PlansForOneSequenceAreRefused) {
  const PlanContext context{model_.model.config().num_layers, 32, 96};
  RequestLoopOptions with = options();
  with.plans = {make_plan("streaming", context)};
  expect_error(ErrorKind::kInvalidRequest,
               {"plan streaming: drafts that gather tokens", "bench and eval"},
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
    options.host_bytes = kHostPages * model_.pool.page_bytes();
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
    EXPECT_EQ(now.free_host_pages + now.prefixes.host_pages, kHostPages);
    EXPECT_EQ(now.scheduler.waiting + now.scheduler.preempted + now.scheduler.admitted, 0u);
    EXPECT_EQ(now.scheduler.promised_pages, 0u);
    loop_.check_integrity();
  }

  static constexpr std::size_t kPages = 40, kHostPages = 30;
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
      "{} requests, {} preemptions ({} by swap) in {:.1f} s; the most resident memory: {:.1f} MB "
      "after a tenth of them, {:.1f} MB after all\n",
      count, loop_.statistics().scheduler.preemptions, loop_.statistics().swaps, clock.seconds(),
      tenth, all);
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
    const std::size_t held = pages / shape.page_bytes();
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
