// Loops of ranks that share a model, in threads and in processes: requests that come and go at one
// rank give what plain decoding at one rank gives alone, to the bit, whatever else runs, is cached,
// drafted, paused or preempted. And a rank that ends or fails ends the requests of all.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/test_folder.h"
#include "comm/test_support.h"
#include "engine/chunk_folder.h"
#include "engine/request_loop.h"
#include "tests/kept_file.h"
#include "tests/model_support.h"
#include "tests/output_support.h"
#include "tests/ranks_support.h"

namespace quantspec::testing {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<TokenId>;

// Requests, and what each gives alone at one rank.
class Catalogue {
 public:
  Catalogue(OwnModel& one, int count) : vocab_size_(one.model.config().vocab_size) {
    const std::vector<Tokens> beginnings = {text(4 * kChunk), text(kChunk + 5), {}};
    for (int i = 0; i < count; ++i) {
      Request request;
      request.prompt = beginnings[i % beginnings.size()];
      const Tokens rest = text(uniform(1, kChunk + 10));
      request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
      request.predict = uniform(40, 110);
      request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
      request.sampling.seed = 1000 + i;
      if (i % 4 == 2) request.sampling.presence_penalty = 0.5f;
      if (i % 5 == 3) request.biases = {.always = {{i, 3}}, .ends = {0, 1}, .min_tokens = 10};
      request.log_probs = true;
      requests_.push_back(request);
      expected_.push_back(alone(one, request, kContext, kChunk));
    }
  }

  std::size_t size() const { return requests_.size(); }
  const Request& request(std::size_t i) const { return requests_[i]; }
  const Output& expected(std::size_t i) const { return expected_[i]; }

 private:
  int uniform(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  Tokens text(int count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = uniform(0, vocab_size_ - 1);
    return tokens;
  }
  int vocab_size_;
  std::mt19937 random_{5};
  std::vector<Request> requests_;
  std::vector<Output> expected_;
};

// One that was submitted.
struct Running {
  std::size_t which = 0;
  RequestId id = 0;
  Output output = {};
  std::optional<Request::Ended> end = {};
};

// All that were, and what became of them; a loop's thread tells.
class Callers {
 public:
  void submit(RequestLoop& loop, Request request, std::size_t which) {
    Running& one = *all_.emplace_back(std::make_unique<Running>(Running{which}));
    request.on_tokens = [this, &one](const Step& step) {
      const std::lock_guard lock(mutex_);
      one.output.add(step);
      return true;
    };
    request.on_end = [this, &one](const Request::Ended& ended) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(one.end) << "ended twice";
      one.end = ended;
      changed_.notify_all();
    };
    one.id = loop.submit(std::move(request));
  }
  // Until all have ended.
  void wait() {
    std::unique_lock lock(mutex_);
    const auto ended = [](const auto& one) { return one->end.has_value(); };
    ASSERT_TRUE(changed_.wait_for(lock, 60s, [&] { return std::ranges::all_of(all_, ended); }));
  }
  // Until one has so many tokens, or has ended.
  void wait_for_tokens(std::size_t i, std::size_t count) {
    const Stopwatch clock;
    while (clock.seconds() < 60) {
      {
        const std::lock_guard lock(mutex_);
        if (all_[i]->output.tokens.size() >= count || all_[i]->end) return;
      }
      std::this_thread::sleep_for(1ms);
    }
    FAIL() << "no tokens come";
  }
  const std::vector<std::unique_ptr<Running>>& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Running>> all_;
};

// What happened in schedules; of the rank that leads.
struct Seen {
  std::uint64_t cached = 0, accepted = 0, preempted = 0, cancelled = 0, ahead = 0, looked_up = 0;
  std::uint64_t on_disk = 0, from_files = 0;
  bool has_files = false;
  bool all() const {
    return cached > 0 && accepted > 0 && preempted > 0 && cancelled > 0 && ahead > 0 &&
           looked_up > 0 && (!has_files || (on_disk > 0 && from_files > 0));
  }
};

// Of shared contexts drafts read all pages.
std::vector<Plan> plans_of(const ModelConfig& config) {
  const int layers = config.num_layers;
  const PlanContext context{layers, kPage, KvBudget::one_in(2)};
  return {Plan::draft(layers, WeightRead::kUpper),
          config.context_ranks > 1 ? Plan::draft(layers, WeightRead::kBoth)
                                   : make_plan("quantspec+sparse", context),
          Plan::lookup()};
}

// A loop of any sizes; the same at every rank.
RequestLoopOptions any_options(std::mt19937& random, const ModelConfig& config,
                               std::size_t page_bytes) {
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  RequestLoopOptions options{.sequences = uniform(4, 6), .context = kContext, .chunk = kChunk};
  if (uniform(0, 3) > 0) options.plans = plans_of(config);
  options.pages = uniform(14, 16);  // one of them needs up to 14
  options.admission = Admission::kExpected;
  options.host_bytes = uniform(0, 20) * page_bytes;
  if (uniform(0, 1) == 0) options.tail_bytes = 50 * page_bytes;
  options.read_ahead_after = 0;
  options.timing_seconds = 0.05;
  return options;
}

// What was kept of a prompt, in files of any loops.
struct Files {
  std::map<std::size_t, KeptFile> of;
  TestFolder place;
  std::shared_ptr<ChunkFolder> folder =
      std::make_shared<ChunkFolder>(ChunkFolder::Options{place.path(), 1 << 30, "b", kChunk});
};

// Callers of one loop, as a server's: they come, wait, leave, read slowly; and texts go to files
// and come back.
void call(RequestLoop& loop, bool drafts, const Catalogue& catalogue, std::mt19937& random,
          Files* files, Seen& seen) {
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  Callers callers;
  std::vector<RequestId> paused;
  std::jthread thread([&] { loop.run(); });
  const bool ahead = uniform(0, 1) == 0;
  if (ahead) loop.read_ahead(catalogue.request(uniform(0, 5)).prompt);
  for (int i = uniform(5, 10); i > 0; --i) {
    const auto which = static_cast<std::size_t>(uniform(0, static_cast<int>(catalogue.size()) - 1));
    Request request = catalogue.request(which);
    request.owner = uniform(0, 2);
    request.priority = uniform(0, 1);
    if (drafts && uniform(0, 1) == 0) request.forced = DraftChoice{uniform(0, 1), uniform(0, 7)};
    if (uniform(0, 3) == 0) request.draft_len = uniform(0, 7);
    if (uniform(0, 3) == 0) request.proposed = catalogue.expected(which).tokens;
    const Tokens prompt = request.prompt;
    callers.submit(loop, std::move(request), which);
    const int file = files != nullptr ? uniform(0, 5) : -1;
    if (file == 0) files->of[which] = read_file_of(loop, prompt);
    if (file == 1 && files->of.contains(which)) {
      write_file_of(loop, prompt, files->of[which]);
      seen.from_files += files->of[which].kept.chunks;
    }
    if (uniform(0, 3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(uniform(1, 20)));
    const auto& some = *callers.all()[uniform(0, static_cast<int>(callers.all().size()) - 1)];
    const int wish = uniform(0, 7);
    if (wish == 0) loop.cancel(some.id);
    if (wish <= 3) {
      loop.pause(some.id);
      paused.push_back(some.id);
    }
  }
  // Who is paused gives way to those that wait.
  std::this_thread::sleep_for(std::chrono::milliseconds(uniform(10, 100)));
  for (const RequestId id : paused) loop.resume(id);
  callers.wait();
  const Stopwatch clock;  // what is read ahead is, now that nobody is there
  while (ahead && loop.statistics().ahead_tokens == 0 && clock.seconds() < 0.5) {
    std::this_thread::sleep_for(1ms);
  }
  loop.stop();
  thread.join();
  EXPECT_FALSE(loop.broken());
  for (const auto& one : callers.all()) {
    ASSERT_TRUE(one->end);
    const Output& expected = catalogue.expected(one->which);
    EXPECT_NE(one->end->end, RequestEnd::kFailed) << one->end->error->what();
    EXPECT_TRUE(one->output.is_prefix_of(expected)) << "request " << one->which;
    if (one->end->end == RequestEnd::kDone) {
      EXPECT_EQ(one->output.tokens.size(), expected.tokens.size());
    }
    seen.cancelled += one->end->end == RequestEnd::kCancelled;
    seen.cached += one->end->cached_tokens;
    seen.accepted += one->end->stats.accepted;
  }
  const RequestLoop::Statistics now = loop.statistics();
  seen.preempted += now.swaps + now.replays;
  seen.ahead += now.ahead_tokens;
  if (!now.turns_by_plan.empty()) seen.looked_up += now.turns_by_plan.back();
}

// What a rank does in a test: all go through the same loops, further ones where what they are for
// did not happen by chance.
void serve(const Sharing& sharing, int loops, const Catalogue& catalogue, Communicator& all,
           Seen& seen) {
  OwnModel own(sharing, &all);
  std::mt19937 same{7}, callers{8};
  std::optional<Files> files;
  // Of a shared context nothing goes to a file.
  if (all.rank() == 0 && sharing.context_ranks == 1) files.emplace();
  seen.has_files = files.has_value();
  const Agreement agreement(&all);
  for (int i = 0; i < loops || (i < 8 * loops && !agreement.on(seen.all())); ++i) {
    RequestLoopOptions options = any_options(same, own.model.config(), own.pool.page_bytes());
    options.ranks = &all;
    if (files && i % 2 == 1) options.folder = files->folder;
    const bool drafts = !options.plans.empty();
    RequestLoop loop(own.model, own.pool.shape(), std::move(options));
    if (all.rank() == 0) {
      call(loop, drafts, catalogue, callers, files ? &*files : nullptr, seen);
      if (files) seen.on_disk = files->folder->counts().found;
    } else {
      loop.run();
      if (const auto error = loop.broken()) throw Error(*error);
    }
    loop.check_integrity();
  }
}

constexpr WeightFormat kQ4K{.bits = 4, .group = 32, .block = 256, .has_offset = true};
struct Case {
  const char* name;
  Sharing sharing;
  int ranks;
  bool processes;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class RanksLoop : public ::testing::TestWithParam<Case> {};

TEST_P(RanksLoop, GivesWhatOneRankGivesAlone) {
  const Case& c = GetParam();
  if (c.sharing.backend == std::string("cuda") && !has_gpu()) GTEST_SKIP() << "no GPU";
  const int loops = 16 / c.ranks;
  std::optional<OwnModel> one(std::in_place, c.sharing, nullptr);
  const Catalogue catalogue(*one, 12);
  one.reset();
  SharedRanks ranks(c.ranks);
  Seen seen;
  const auto f = [&](Communicator& all) {
    Seen others;
    serve(c.sharing, loops, catalogue, all, all.rank() == 0 ? seen : others);
  };
  if (c.processes) {
    RankProcesses others(ranks, c.ranks, f);
    EXPECT_NO_THROW(as_rank(ranks, 0, f));
    for (const int end : others.wait()) EXPECT_EQ(end, 0);
  } else {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < c.ranks; ++rank) {
      threads.emplace_back([&, rank] { EXPECT_NO_THROW(as_rank(ranks, rank, f)); });
    }
  }
  EXPECT_GT(seen.cached, 0u);
  EXPECT_GT(seen.accepted, 0u);
  EXPECT_GT(seen.preempted, 0u);
  EXPECT_GT(seen.cancelled, 0u);
  EXPECT_GT(seen.ahead, 0u);
  EXPECT_GT(seen.looked_up, 0u);
  if (seen.has_files) {
    EXPECT_GT(seen.on_disk, 0u);
    EXPECT_GT(seen.from_files, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RanksLoop,
    ::testing::Values(Case{"bf16_2_threads", {dense_format(DType::kBF16)}, 2, false},
                      Case{"bf16_2_processes", {dense_format(DType::kBF16)}, 2, true},
                      Case{"bf16_4_processes", {dense_format(DType::kBF16)}, 4, true},
                      Case{"Q4_K_2_processes", {kQ4K}, 2, true},
                      Case{"context_of_2_threads", {kQ4K, 2}, 2, false},
                      Case{"context_of_2_processes", {dense_format(DType::kBF16), 2}, 2, true},
                      // Two groups with two KV heads each; and more ranks than KV heads.
                      Case{"contexts_of_2_by_4_processes", {kQ4K, 2}, 4, true},
                      Case{"context_of_4_with_2_kv_heads", {kQ4K, 4, 2}, 4, true},
                      Case{"cuda_bf16_2", {dense_format(DType::kBF16), 1, 4, "cuda"}, 2, false},
                      Case{"cuda_Q4_K_4", {kQ4K, 1, 4, "cuda"}, 4, false},
                      Case{"cuda_context_of_2", {kQ4K, 2, 8, "cuda"}, 2, false},
                      Case{"cuda_contexts_of_2_by_4", {kQ4K, 2, 2, "cuda"}, 4, false}),
    [](const auto& info) { return std::string(info.param.name); });

// --- what goes wrong at one rank ---

// Two ranks decode when `harm` comes to the second; how long the caller waits, and what it hears.
void expect_end(const std::function<void(const RankProcesses&)>& harm, double most_seconds,
                const std::string& reason) {
  const Sharing sharing{dense_format(DType::kBF16)};
  SharedRanks ranks(2, 2s);
  const auto options_of = [](Communicator& all) {
    RequestLoopOptions options{.sequences = 2, .context = kContext, .chunk = kChunk};
    options.timing_seconds = 0;
    options.ranks = &all;
    return options;
  };
  RankProcesses others(ranks, 2, [&](Communicator& all) {
    OwnModel own(sharing, &all);
    RequestLoop loop(own.model, own.pool.shape(), options_of(all));
    loop.run();
    if (const auto error = loop.broken()) throw Error(*error);
  });
  as_rank(ranks, 0, [&](Communicator& all) {
    OwnModel own(sharing, &all);
    RequestLoop loop(own.model, own.pool.shape(), options_of(all));
    struct Running {
      RequestLoop& loop;
      std::jthread thread{[this] { loop.run(); }};
      ~Running() { loop.stop(); }
    } running{loop};
    Callers callers;
    Request request{.prompt = Tokens(40, 3), .predict = kContext - 60, .log_probs = true};
    callers.submit(loop, request, 0);
    callers.submit(loop, request, 0);
    callers.wait_for_tokens(0, 5);
    const Stopwatch clock;
    harm(others);
    callers.wait();
    EXPECT_LT(clock.seconds(), most_seconds);
    for (const auto& one : callers.all()) {
      ASSERT_TRUE(one->end && one->end->error);
      EXPECT_EQ(one->end->end, RequestEnd::kFailed);
      EXPECT_NE(std::string(one->end->error->what()).find(reason), std::string::npos)
          << one->end->error->what();
    }
    // And whoever comes later.
    running.thread.join();
    ASSERT_TRUE(loop.broken());
    try {
      loop.submit(request);
      ADD_FAILURE() << "it takes requests";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  });
}

TEST(RanksLoopEnds, WhereAProcessIsKilled) {
  expect_end([](const RankProcesses& others) { kill(others.of(1), SIGKILL); }, 5,
             "rank 1 has ended");
}

TEST(RanksLoopEnds, WhereAProcessHangs) {
  expect_end([](const RankProcesses& others) { kill(others.of(1), SIGSTOP); }, 8,
             "rank 1 did not come within 2000 ms");
}

}  // namespace
}  // namespace quantspec::testing
