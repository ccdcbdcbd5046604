// What a sequence gives in a batch is what it gives alone (section 3 of docs/design.md), whatever
// is beside it: tokens and logits, bit for bit.

#include <gtest/gtest.h>

#include <random>

#include "engine/request_loop.h"
#include "tests/subject.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kPage = 32;
constexpr int kChunk = 2 * kPage;

class BatchExactness : public ::testing::TestWithParam<Subject> {
 protected:
  int uniform(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  Tokens text(int count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = uniform(0, model_.model.config().vocab_size - 1);
    return tokens;
  }

  SubjectFile file_{GetParam()};
  LoadedModel model_ = file_.load(2, kPage);
  std::mt19937 random_{11};
};

// A text, how it is continued, and what came of that alone.
struct Request {
  Tokens prompt;
  DecodingOptions options;
  int start;  // the round from which on it takes part
  Tokens expected = {};
};

TEST_P(BatchExactness, RoundsOfManySequencesGiveEachWhatItGivesAlone) {
  const bool slow = GetParam().slow();
  const int count = slow ? 40 : 120, num_requests = slow ? 6 : 44;
  const int layers = model_.model.config().num_layers;
  const PlanContext context{layers, kPage, 3 * kPage};
  const PlanContext half{layers, kPage, KvBudget::one_in(2)};
  const std::vector<Plan> plans = {Plan::draft(layers, WeightRead::kUpper),
                                   make_plan("quantspec+sparse+w8", context),
                                   make_plan("quantspec+bounds", half), Plan::lookup()};
  std::vector<Request> requests;
  for (int i = 0; i < num_requests; ++i) {
    DecodingOptions options = model_.greedy(0);
    options.plans = plans;
    options.sampling.repeat_penalty = i % 2 == 0 ? 1.3f : 1.0f;
    options.spec_sampling = SpecSampling::kCoupled;  // or rejection would depend on the lengths
    if (i % 3 != 0) options.sampling.temperature = 0.8f;
    options.sampling.seed = 100 + i;
    if (i % 4 == 1) options.sampling.presence_penalty = 0.5f;
    if (i % 4 == 2) options.sampling.frequency_penalty = 0.25f;
    if (i % 4 == 3) options.biases = {.always = {{i, 3}}, .ends = {0, 1}, .min_tokens = 10};
    requests.push_back({text(uniform(1, 7 * kPage)), options, uniform(0, 10)});
  }
  const auto make = [&](const Request& request) {
    KvOptions kv = kv_options(request.options.plans);
    kv.chunk = kChunk;
    const int capacity = static_cast<int>(request.prompt.size()) + count + kMaxDraftLen;
    return std::make_unique<Sequence>(model_.model, model_.pool, capacity, request.options, kv);
  };
  for (Request& request : requests) {
    const auto alone = make(request);
    model_.decoder.prefill(*alone, request.prompt);
    while (std::ssize(alone->tokens()) < std::ssize(request.prompt) + count) {
      model_.decoder.step(*alone, 1);
    }
    request.expected = alone->tokens();
  }
  std::vector<std::unique_ptr<Sequence>> sequences(requests.size());
  std::size_t done = 0;
  std::int64_t accepted = 0, rejections = 0, most_lanes = 0, looked_up = 0;
  for (int round = 0; done < requests.size(); ++round) {
    std::vector<Lane> lanes;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Request& request = requests[i];
      if (round < request.start) continue;
      if (sequences[i] == nullptr) {
        sequences[i] = make(request);
        model_.decoder.prefill(*sequences[i], request.prompt);
      }
      const int left = static_cast<int>(request.prompt.size()) + count -
                       static_cast<int>(sequences[i]->tokens().size());
      if (left <= 0 || uniform(0, 9) == 0) continue;  // some sit a round out
      const int cap = std::min({sequences[i]->max_rows() - 1, left - 1, uniform(0, 6)});
      lanes.push_back({sequences[i].get(), {uniform(0, 2), cap}});
      const std::span<const TokenId> found = sequences[i]->look_up(cap).tokens;
      if (found.empty() || uniform(0, 2) == 0) continue;
      lanes.back().choice = {3, static_cast<int>(found.size())};
      lanes.back().proposed = found;
      ++looked_up;
    }
    if (lanes.empty()) continue;
    std::ranges::shuffle(lanes, random_);
    model_.decoder.round(lanes);
    most_lanes = std::max<std::int64_t>(most_lanes, std::ssize(lanes));
    done = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (sequences[i] == nullptr) continue;
      const Tokens& tokens = sequences[i]->tokens();
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), requests[i].expected.begin()))
          << "request " << i << " after round " << round;
      done += tokens.size() == requests[i].expected.size();
    }
  }
  for (const auto& sequence : sequences) {
    accepted += sequence->stats().accepted;
    rejections += sequence->stats().rejections;
  }
  EXPECT_GT(accepted, 2 * num_requests);
  EXPECT_GT(rejections, 2 * num_requests);
  EXPECT_GT(looked_up, num_requests);
  EXPECT_GT(most_lanes, slow ? num_requests / 2 : 32);  // more than a launch on a GPU has
}

// Rejection draws by position, so that equal drafts are judged alike.
TEST_P(BatchExactness, RejectionOfOneSequenceDoesNotDependOnTheOthers) {
  const int count = 60, layers = model_.model.config().num_layers;
  DecodingOptions options = model_.greedy(0);
  options.plans = {Plan::draft(layers, WeightRead::kUpper)};
  options.sampling.temperature = 0.9f;
  const auto make = [&](int i, const Tokens& prompt) {
    options.sampling.seed = i;
    auto sequence = std::make_unique<Sequence>(model_.model, model_.pool, 200, options);
    model_.decoder.prefill(*sequence, prompt);
    return sequence;
  };
  const auto lane = [&](Sequence& sequence, int i) {
    const int length = static_cast<int>(sequence.tokens().size());
    return Lane{&sequence, {0, std::min((length + i) % 5, sequence.max_rows() - 1)}};
  };
  std::vector<Tokens> prompts, expected;
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 7; ++i) {
    prompts.push_back(text(20 + 9 * i));
    const auto alone = make(i, prompts.back());
    while (std::ssize(alone->tokens()) < std::ssize(prompts.back()) + count) {
      const Lane only = lane(*alone, i);
      model_.decoder.round({&only, 1});
    }
    expected.push_back(alone->tokens());
    sequences.push_back(make(i, prompts.back()));
  }
  for (bool more = true; more;) {
    std::vector<Lane> lanes;
    for (int i = 0; i < 7; ++i) {
      if (std::ssize(sequences[i]->tokens()) < std::ssize(prompts[i]) + count) {
        lanes.push_back(lane(*sequences[i], i));
      }
    }
    more = !lanes.empty();
    if (more) model_.decoder.round(lanes);
  }
  for (int i = 0; i < 7; ++i) EXPECT_EQ(sequences[i]->tokens(), expected[i]) << i;
}

// More lanes than one launch on a GPU takes, of one plan, of which every fourth drafts: for enough
// rounds that a GPU repeats them.
TEST_P(BatchExactness, LoopsOfManySequences) {
  if (!is_best(GetParam().backend)) GTEST_SKIP() << "about launches on a GPU";
  const Plan plan = Plan::draft(model_.model.config().num_layers, WeightRead::kUpper);
  std::vector<quantspec::Request> requests;
  std::vector<Tokens> expected;
  for (int i = 0; i < 8; ++i) {
    quantspec::Request request{.prompt = text(5 + 9 * i), .predict = 30};
    request.sampling = {.temperature = i % 3 == 0 ? 0.0f : 0.8f, .seed = 50u + i};
    request.draft_len = i % 4 == 0 ? 3 : 0;
    DecodingOptions options{
        .sampling = request.sampling, .spec_sampling = SpecSampling::kCoupled, .draft_len = 0};
    expected.push_back(model_.generate(request.prompt, request.predict, options));
    requests.push_back(request);
  }
  for (const int count : {33, 129, 160}) {
    SCOPED_TRACE(count);
    RequestLoop loop(model_.model, model_.pool.shape(),
                     {.sequences = count, .context = 4 * kPage, .plans = {plan}});
    std::vector<Tokens> outputs(count);
    std::size_t most = 0;
    for (int i = 0; i < count; ++i) {
      quantspec::Request request = requests[i % requests.size()];
      request.on_tokens = [&output = outputs[i]](const Step& step) {
        output.insert(output.end(), step.tokens.begin(), step.tokens.end());
        return true;
      };
      loop.submit(request);
    }
    while (loop.step()) most = std::max(most, loop.statistics().scheduler.admitted);
    EXPECT_EQ(most, static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(outputs[i], expected[i % requests.size()]) << "sequence " << i;
    }
    EXPECT_GT(loop.statistics().accepted, 0);
  }
}

// The largest pass there is: 1,024 rows.
TEST_P(BatchExactness, ARowHasTheSameBitsAmongAThousand) {
  if (GetParam().slow()) GTEST_SKIP() << "slow";
  constexpr int kRows = 16, kSequences = 64;
  const int vocab = model_.model.config().vocab_size, layers = model_.model.config().num_layers;
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<Tokens> texts;
  std::vector<SequenceInput> inputs;
  std::vector<float> last(vocab);
  for (int i = 0; i < kSequences; ++i) {
    texts.push_back(text(kPage * (1 + i % 5) + kRows));
    const int prompt = static_cast<int>(texts[i].size()) - kRows;
    caches.push_back(std::make_unique<KvCache>(*model_.backend, model_.pool, 8 * kPage));
    model_.model.prefill(std::span(texts[i]).first(prompt), *caches[i], last);
    caches[i]->reserve(kRows);
    inputs.push_back({std::span(texts[i]).last(kRows), caches[i].get()});
  }
  for (const Plan& plan : {Plan::target(layers), Plan::draft(layers, WeightRead::kUpper),
                           Plan::draft(layers, WeightRead::kBoth)}) {
    std::vector<float> all(static_cast<std::size_t>(kSequences) * kRows * vocab);
    std::vector<float> alone(static_cast<std::size_t>(kRows) * vocab);
    model_.model.forward(inputs, plan, all);
    for (int i = 0; i < kSequences; ++i) {
      model_.model.forward({&inputs[i], 1}, plan, alone);
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + i * alone.size()))
          << "sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BatchExactness, ::testing::ValuesIn(subjects()),
                         [](const auto& info) { return subject_name(info.param); });

}  // namespace
}  // namespace quantspec::testing
