// E3 of the contract (docs/design.md, section 3): the tokens of a request, and their
// log-probabilities, are a function of the request and the engine, whatever else runs, whatever was
// cached, whenever it came, and however often it was preempted. Requests that were computed alone,
// by plain decoding, against the same requests in random schedules.

#include <gtest/gtest.h>

#include <random>

#include "engine/request_loop.h"
#include "tests/model_support.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kPage = 32;
constexpr int kChunk = 2 * kPage;
constexpr int kContext = 7 * kChunk;

struct Output {
  Tokens tokens = {};
  std::vector<float> log_probs = {};

  void add(const Step& step) {
    EXPECT_EQ(step.log_probs.size(), step.tokens.size());
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    log_probs.insert(log_probs.end(), step.log_probs.begin(), step.log_probs.end());
  }
  bool is_prefix_of(const Output& other) const {
    return std::ranges::equal(tokens, std::span(other.tokens).first(tokens.size())) &&
           std::ranges::equal(log_probs, std::span(other.log_probs).first(log_probs.size()));
  }
};

class ScheduleExactness : public ::testing::TestWithParam<std::string> {
 protected:
  ScheduleExactness() : model_(testdata("models/llama-gqa3"), GetParam(), 2, kPage) {
    const int layers = model_.model.config().num_layers;
    const PlanContext context{layers, kPage, kContext, 3 * kPage};
    plans_ = {Plan::draft(layers, WeightRead::kUpper), make_plan("quantspec+w8", context),
              make_plan("quantspec+sparse", context)};
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
      if (!request.prompt.empty()) request.prompt.resize(uniform(1, std::ssize(request.prompt)));
      const Tokens rest = text(uniform(request.prompt.empty() ? 1 : 0, kChunk + 10));
      request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
      request.predict = uniform(1, 50);
      request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
      request.sampling.repeat_penalty = i % 2 == 0 ? 1.0f : 1.3f;
      request.sampling.seed = 1000 + i;
      request.log_probs = true;
      catalogue_.push_back(request);
      expected_.push_back(alone(request));
    }
  }
  Output alone(const Request& request) {
    DecodingOptions options;
    options.sampling = request.sampling;
    options.spec_sampling = SpecSampling::kCoupled;
    options.draft_len = 0;
    options.log_probs = true;
    Sequence sequence(model_.model, model_.pool, kContext, options, {.chunk = kChunk});
    const auto reader = model_.decoder.begin_prompt(sequence, request.prompt);
    while (!reader->done()) reader->step();
    Output output;
    output.add(model_.decoder.end_prompt(sequence));
    while (std::ssize(output.tokens) < request.predict) {
      output.add(model_.decoder.step(sequence, 1));
    }
    return output;
  }

  LoadedModel model_;
  std::vector<Plan> plans_;
  std::mt19937 random_{5};
  std::vector<Request> catalogue_;
  std::ptrdiff_t loop_plans_ = 0;
  std::vector<Output> expected_;
};

TEST_P(ScheduleExactness, RequestsGiveWhatTheyGiveAlone) {
  const bool slow = GetParam() == "reference" || GetParam() == "cpu/scalar";
  make_catalogue(slow ? 8 : 24);
  const int schedules = slow ? 12 : is_best(GetParam()) ? 1000 : 200;
  std::unique_ptr<RequestLoop> loop;
  int preemptions = 0, cancelled = 0, cached = 0, accepted = 0;
  for (int schedule = 0; schedule < schedules; ++schedule) {
    if (loop == nullptr || one_in(8)) {  // else what the last ones left is cached
      RequestLoopOptions options{.sequences = uniform(1, 5),
                                 .context = kContext,
                                 .chunk = kChunk,
                                 .plans = plans_,
                                 .share_prefixes = !one_in(6)};
      if (one_in(2)) options.plans = {};
      // Fewer pages than all could hold: prefixes are evicted, requests wait.
      if (one_in(2)) options.pages = kContext / kPage + uniform(0, 10);
      if (one_in(2)) options.admission = Admission::kExpected;
      loop = std::make_unique<RequestLoop>(model_.model, model_.pool.shape(), options);
      if (options.plans.empty())
        loop_plans_ = 0;
      else
        loop_plans_ = std::ssize(plans_);
    }
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
          running->id = loop->submit(std::move(request));
        }
        if (running->start >= step || running->end) continue;
        if (std::ssize(running->output.tokens) == running->cancel_after) loop->cancel(running->id);
        if (one_in(40)) preemptions += loop->preempt(running->id);
      }
      loop->step();
      if (one_in(10)) loop->check_integrity();
    }
    for (const auto& running : all) {
      const Output& expected = expected_[running->which];
      cancelled += running->end == RequestEnd::kCancelled;
      ASSERT_TRUE(running->output.is_prefix_of(expected)) << "schedule " << schedule;
      if (running->end == RequestEnd::kDone) {
        ASSERT_EQ(running->output.tokens.size(), expected.tokens.size());
      }
    }
    const RequestLoop::Statistics now = loop->statistics();
    ASSERT_EQ(now.scheduler.admitted + now.scheduler.waiting + now.scheduler.preempted, 0u);
    ASSERT_EQ(now.prefixes.pages, now.prefixes.idle_pages);
  }
  EXPECT_GT(preemptions, schedules / 4);
  EXPECT_GT(cancelled, schedules / 20);
  EXPECT_GT(cached, schedules * kChunk / 10);
  EXPECT_GT(accepted, schedules);
}

INSTANTIATE_TEST_SUITE_P(Backends, ScheduleExactness, ::testing::ValuesIn(all_backends()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace quantspec::testing
