// E3 of the contract (docs/design.md, section 3): the tokens of a request, and their
// log-probabilities, are a function of the request and the engine, whatever else runs, whatever was
// cached, whenever it came, and however often it was preempted, be it to come back from the host's
// memory or to be read again. Requests that were computed alone, by plain decoding on one thread,
// against the same requests in random schedules on three.

#include <gtest/gtest.h>

#include <random>

#include "base/test_folder.h"
#include "engine/chunk_folder.h"
#include "engine/request_loop.h"
#include "tests/output_support.h"
#include "tests/subject.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kPage = 32;
constexpr int kChunk = 2 * kPage;
constexpr int kContext = 7 * kChunk;

class ScheduleExactness : public ::testing::TestWithParam<Subject> {
 protected:
  ScheduleExactness() {
    const int layers = model_.model.config().num_layers;
    const PlanContext context{layers, kPage, KvBudget::one_in(2)};
    plans_ = {Plan::draft(layers, WeightRead::kUpper), make_plan("quantspec+w8", context),
              make_plan("quantspec+sparse", context), Plan::lookup()};
  }

  int uniform(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool one_in(int n) { return uniform(1, n) == 1; }
  Tokens text(int count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = uniform(0, model_.model.config().vocab_size - 1);
    return tokens;
  }

  // Requests of which many begin alike, greedy and with seeds.
  void make_catalogue(int count) {
    const std::vector<Tokens> beginnings = {text(4 * kChunk), text(kChunk + 5), {}};
    for (int i = 0; i < count; ++i) {
      Request request;
      request.prompt = beginnings[i % beginnings.size()];
      const bool whole = i % 2 == 0;  // in whole chunks, or in any number of tokens
      if (!request.prompt.empty() && !whole) {
        request.prompt.resize(uniform(1, std::ssize(request.prompt)));
      }
      const Tokens rest = text(uniform(request.prompt.empty() ? 1 : 0, kChunk + 10));
      request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
      request.predict = uniform(1, 50);
      request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
      request.sampling.repeat_penalty = i % 2 == 0 ? 1.0f : 1.3f;
      request.sampling.seed = 1000 + i;
      if (i % 4 == 2) request.sampling.presence_penalty = 0.5f;
      if (i % 5 == 2) request.sampling.frequency_penalty = 0.25f;
      if (i % 5 == 3) request.biases = {.always = {{i, 3}}, .ends = {0, 1}, .min_tokens = 10};
      request.log_probs = true;
      catalogue_.push_back(request);
      expected_.push_back(alone(request));
    }
  }
  Output alone(const Request& request) { return testing::alone(alone_, request, kContext, kChunk); }

  // What an answer may be, right up to some token.
  Tokens guess(Tokens answer) {
    if (one_in(3)) return answer;
    answer.resize(uniform(1, std::ssize(answer) + 5));
    for (int i = uniform(0, 2); i > 0; --i) {
      answer[uniform(0, std::ssize(answer) - 1)] = uniform(0, model_.model.config().vocab_size - 1);
    }
    return answer;
  }

  // A loop of any sizes.
  void make_loop() {
    end_loop();
    RequestLoopOptions options{.sequences = uniform(1, 5),
                               .context = kContext,
                               .chunk = kChunk,
                               .plans = plans_,
                               .share_prefixes = !one_in(6)};
    if (one_in(2)) options.plans = {};
    // Fewer pages than all could hold: prefixes are evicted, requests wait. The longest needs 10.
    if (!one_in(4)) options.pages = uniform(10, 20);
    if (one_in(2)) options.admission = Admission::kExpected;
    if (one_in(2)) options.lookup_history = uniform(16, 3 * kContext);
    // Room for some of what is preempted and evicted, or for none, by turns.
    host_pages_ = num_loops_++ % 2 == 0 ? uniform(6, 60) : uniform(0, 5);
    options.host_bytes = host_pages_ * model_.pool.page_bytes();
    if (!one_in(3)) options.tail_bytes = uniform(10, 100) * model_.pool.page_bytes();
    // What loops before have left on disk, and what there is room for of this one's.
    if (one_in(2)) {
      options.folder = std::make_shared<ChunkFolder>(
          ChunkFolder::Options{.folder = folder_.path(),
                               .most_bytes = uniform(3, 100) * 2 * model_.pool.page_bytes(),
                               .fingerprint = "the model",
                               .chunk_tokens = kChunk});
    }
    options.read_ahead_after = 0;
    cache_folder_ = options.folder;
    loop_plans_ = std::ssize(options.plans);
    loop_ = std::make_unique<RequestLoop>(model_.model, model_.pool.shape(), options);
  }
  // What the loop did is counted.
  void end_loop() {
    if (loop_ == nullptr) return;
    const RequestLoop::Statistics now = loop_->statistics();
    if (loop_plans_ > 0) looked_up_ += now.turns_by_plan.back();
    swaps_ += now.swaps;
    replays_ += now.replays;
    swapped_in_ += now.pages_swapped_in;
    in_tails_ += now.tail_tokens;
    ahead_ += now.ahead_tokens;
    if (cache_folder_) from_folder_ += cache_folder_->counts().found;
    to_host_ += now.prefixes.to_host;
    from_host_ += now.prefixes.from_host;
    loop_.reset();
  }

  SubjectFile file_{GetParam()};
  LoadedModel alone_ = file_.load(1, kPage);
  LoadedModel model_ = file_.load(3, kPage);
  std::vector<Plan> plans_;
  std::mt19937 random_{5};
  std::vector<Request> catalogue_;
  std::vector<Output> expected_;
  std::unique_ptr<RequestLoop> loop_;
  std::ptrdiff_t loop_plans_ = 0;
  int num_loops_ = 0;
  std::size_t host_pages_ = 0;
  std::uint64_t swaps_ = 0, replays_ = 0, swapped_in_ = 0, to_host_ = 0, from_host_ = 0;
  std::uint64_t in_tails_ = 0, from_folder_ = 0, ahead_ = 0, looked_up_ = 0;
  TestFolder folder_;
  std::shared_ptr<ChunkFolder> cache_folder_;
};

TEST_P(ScheduleExactness, RequestsGiveWhatTheyGiveAlone) {
  const bool slow = GetParam().slow();
  make_catalogue(slow ? 8 : 24);
  const int schedules =
      slow                                                                          ? 24
      : GetParam().weights == KeptWeights::kElements && is_best(GetParam().backend) ? 1000
                                                                                    : 200;
  int preemptions = 0, cancelled = 0, cached = 0, accepted = 0;
  // What schedules are for, and how often it must have happened. The clock, which prices plans, and
  // chance decide how often it does: more schedules follow where it was seldom.
  struct Seen {
    const char* what;
    std::uint64_t times, more_than;
  };
  int run = 0;  // schedules
  const auto seen = [&]() -> std::vector<Seen> {
    const std::uint64_t n = run;
    if (slow) return {{"preempted", static_cast<std::uint64_t>(preemptions), n / 4}};
    return {{"preempted", static_cast<std::uint64_t>(preemptions), n / 4},
            {"cancelled", static_cast<std::uint64_t>(cancelled), n / 20},
            {"tokens from the cache", static_cast<std::uint64_t>(cached), n * kChunk / 10},
            {"accepted", static_cast<std::uint64_t>(accepted), n},
            {"tokens of answers from the cache", in_tails_, n * 4},
            {"chunks from the folder", from_folder_, n / 20},
            {"tokens read ahead", ahead_, n * 4},
            // Seldom where several processes take turns on a GPU.
            {"turns by lookups", looked_up_, GetParam().backend == "cuda" ? 0 : n / 4},
            {"swapped out", swaps_, n / 20},
            {"read again", replays_, n / 20},
            {"pages swapped in", swapped_in_, n / 20},
            {"chunks to the host", to_host_, n / 20},
            {"chunks from the host", from_host_, n / 20}};
  };
  const auto often = [](const Seen& one) { return one.times > one.more_than; };
  for (int schedule = 0;; ++schedule) {
    run = schedule;
    if (schedule > 0 && schedule % schedules == 0) {
      end_loop();
      if (schedule == 5 * schedules || std::ranges::all_of(seen(), often)) break;
    }
    if (loop_ == nullptr || one_in(6)) make_loop();  // else what the last ones left is cached
    struct Running {
      RequestId id;
      std::size_t which;
      int start;
      int cancel_after;  // tokens; negative: never
      Output output = {};
      std::optional<RequestEnd> end = {};
    };
    std::vector<std::unique_ptr<Running>> all;
    for (int i = uniform(1, 7); i > 0; --i) {
      all.push_back(std::make_unique<Running>(
          Running{0, static_cast<std::size_t>(uniform(0, std::ssize(catalogue_) - 1)),
                  uniform(0, 12), one_in(8) ? uniform(0, 10) : -1}));
    }
    if (one_in(3)) {  // before all, or beside some and what they are preempted with
      const Request& text = catalogue_[uniform(0, std::ssize(catalogue_) - 1)];
      loop_->read_ahead(text.prompt, text.salt);
    }
    const bool forced = loop_plans_ > 0 && one_in(2);
    std::size_t ended = 0;
    for (int step = 0; ended < all.size(); ++step) {
      ASSERT_LT(step, 5000) << "schedule " << schedule;
      for (const auto& running : all) {
        if (running->start == step) {
          Request request = catalogue_[running->which];
          request.owner = uniform(0, 2);
          request.priority = uniform(0, 1);
          if (forced) request.forced = DraftChoice{uniform(0, 2), uniform(0, 7)};
          if (one_in(4)) request.draft_len = uniform(0, 7);
          if (one_in(3)) request.proposed = guess(expected_[running->which].tokens);
          request.on_tokens = [at = running.get()](const Step& step) {
            at->output.add(step);
            return true;
          };
          request.on_end = [&, at = running.get()](const Request::Ended& end) {
            EXPECT_FALSE(at->end) << "ended twice";
            at->end = end.end;
            cached += end.cached_tokens;
            accepted += static_cast<int>(end.stats.accepted);
            ++ended;
            EXPECT_NE(end.end, RequestEnd::kFailed) << end.error->what();
          };
          running->id = loop_->submit(std::move(request));
        }
        if (running->start >= step || running->end) continue;
        if (std::ssize(running->output.tokens) == running->cancel_after) loop_->cancel(running->id);
        if (one_in(20)) preemptions += loop_->preempt(running->id);
      }
      loop_->step();
      if (one_in(10)) loop_->check_integrity();
    }
    while (loop_->statistics().reads_ahead) loop_->step();  // who waited for it was cancelled
    for (const auto& running : all) {
      const Output& expected = expected_[running->which];
      cancelled += running->end == RequestEnd::kCancelled;
      ASSERT_TRUE(running->output.is_prefix_of(expected)) << "schedule " << schedule;
      if (running->end == RequestEnd::kDone) {
        ASSERT_EQ(running->output.tokens.size(), expected.tokens.size());
      }
    }
    const RequestLoop::Statistics now = loop_->statistics();
    ASSERT_EQ(now.scheduler.admitted + now.scheduler.waiting + now.scheduler.preempted, 0u);
    ASSERT_EQ(now.prefixes.pages, now.prefixes.idle_pages);
    ASSERT_EQ(now.free_host_pages + now.prefixes.host_pages, host_pages_);
    if (cache_folder_) cache_folder_->wait();
  }
  for (const Seen& one : seen()) EXPECT_GT(one.times, one.more_than) << one.what;
}

// Everything of a request goes to the host's memory, to other pages and another ring come back.
TEST_P(ScheduleExactness, WhatMovesToTheHostComesBack) {
  for (const int plan : {-1, 0, 2}) {  // by none, or one that chooses pages by mass
    SCOPED_TRACE(plan);
    Request request{.prompt = text(2 * kChunk + 3), .predict = 3 * kPage, .log_probs = true};
    request.sampling.seed = 3;
    const Output expected = alone(request);
    RequestLoopOptions options{.sequences = 2,
                               .context = kContext,
                               .chunk = kChunk,
                               .pages = kContext / kPage,
                               .host_bytes = 40 * model_.pool.page_bytes()};
    if (plan >= 0) options.plans = plans_;
    if (plan >= 0) request.forced = DraftChoice{plan, 3};
    RequestLoop loop(model_.model, model_.pool.shape(), options);
    Output output, other;
    request.on_tokens = [&](const Step& step) {
      output.add(step);
      return true;
    };
    const RequestId id = loop.submit(request);
    while (std::ssize(output.tokens) < 2 * kPage) ASSERT_TRUE(loop.step());
    loop.pause(id);
    loop.step();
    ASSERT_TRUE(loop.preempt(id));
    // Another takes its slot, and all pages.
    Request rival{.prompt = text(6 * kChunk), .predict = kChunk, .log_probs = true};
    rival.sampling.seed = 4;
    const Output rivals = alone(rival);
    rival.on_tokens = [&](const Step& step) {
      other.add(step);
      if (std::ssize(other.tokens) >= kChunk / 2) loop.resume(id);
      return true;
    };
    loop.submit(rival);
    while (loop.step()) loop.check_integrity();
    EXPECT_TRUE(output.is_prefix_of(expected) && output.tokens.size() == expected.tokens.size());
    EXPECT_TRUE(other.is_prefix_of(rivals) && other.tokens.size() == rivals.tokens.size());
    const RequestLoop::Statistics now = loop.statistics();
    EXPECT_EQ(now.swaps, 1u);
    EXPECT_EQ(now.replays, 0u);
    EXPECT_GE(now.pages_swapped_in, 1u);
    EXPECT_EQ(now.pages_swapped_in, now.pages_swapped_out);
    EXPECT_EQ(now.prefixes.from_host, 4u);  // its chunks
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ScheduleExactness, ::testing::ValuesIn(subjects()),
                         [](const auto& info) { return subject_name(info.param); });

}  // namespace
}  // namespace quantspec::testing
