// A rank that fails at any step: all that any rank, and any caller, is told is why that one failed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "base/test_folder.h"
#include "comm/test_support.h"
#include "engine/chunk_folder.h"
#include "engine/request_loop.h"
#include "tests/faults/refusals.h"
#include "tests/ranks_support.h"

namespace quantspec::testing {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<TokenId>;

// A rank that fails before one of its calls, or after it.
class FailingRank final : public Communicator {
 public:
  // at: twice the number of the call, and one more for after it; negative: never.
  FailingRank(Communicator& all, int at) : all_(all), at_(at) {}

  int rank() const override { return all_.rank(); }
  int size() const override { return all_.size(); }
  int num_here() const override { return all_.num_here(); }
  using Communicator::reduce_add;
  void reduce_add(std::span<float> x, std::span<const float> partial, int alike) override {
    step([&] { all_.reduce_add(x, partial, alike); });
  }
  void all_gather(std::span<std::byte> out, std::span<const std::byte> own) override {
    step([&] { all_.all_gather(out, own); });
  }
  void all_to_all(std::span<std::byte> out, std::span<const std::byte> own, int group) override {
    step([&] { all_.all_to_all(out, own, group); });
  }
  void broadcast(std::span<std::byte> data, int root) override {
    step([&] { all_.broadcast(data, root); });
  }
  void scatter(std::span<std::byte> out, std::span<const std::byte> pieces, int root) override {
    step([&] { all_.scatter(out, pieces, root); });
  }
  void barrier() override {
    step([&] { all_.barrier(); });
  }
  void wait_for_all() override {
    step([&] { all_.wait_for_all(); });
  }
  void give_up(std::string_view why) noexcept override { all_.give_up(why); }

  int steps() const { return steps_; }  // so many numbers could have been given

 private:
  void step(const auto& call) {
    if (steps_++ == at_) fail(ErrorKind::kInternal, "rank {} ran aground", rank());
    call();
    if (steps_++ == at_) fail(ErrorKind::kInternal, "rank {} ran aground", rank());
  }

  Communicator& all_;
  const int at_;
  int steps_ = 0;
};

struct Setting {
  Way way;
  int ranks, context_ranks;
};

// What became of it all.
struct Ends {
  std::vector<std::string> ranks;     // by rank, what it ended by; empty: by nothing
  std::vector<std::string> requests;  // the same
  std::vector<int> steps;             // by rank
};

// Requests of one beginning, with too few pages for all of them, and a folder.
class Play {
 public:
  // refuses: of all ranks' allocations the one with that number; negative: none.
  Play(const Setting& setting, int who, int at, int refuses = -1)
      : setting_(setting),
        who_(who),
        at_(at),
        refuses_(refuses),
        ranks_(setting.way, setting.ranks) {
    ends_.ranks.resize(setting.ranks);
    ends_.steps.resize(setting.ranks);
    ends_.requests.resize(kRequests);
  }

  Ends run() {
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < setting_.ranks; ++rank) {
        threads.emplace_back([this, rank] {
          try {
            as_rank(ranks_, rank, [&](Communicator& all) { run_rank(all); });
          } catch (...) {
            ends_.ranks[rank] = current_error("a rank").what();
          }
        });
      }
    }
    return ends_;
  }

 private:
  static constexpr int kRequests = 4;

  void run_rank(Communicator& all) {
    if (refuses_ >= 0 && all.rank() == 0) {  // all have met: who does not, cannot tell
      refuse_after = refuses_;
      refuse_next = 1;
    }
    all.barrier();
    FailingRank rank(all, all.rank() == who_ ? at_ : -1);
    const struct Count {
      int& steps;
      FailingRank& rank;
      ~Count() { steps = rank.steps(); }
    } count{ends_.steps[all.rank()], rank};
    OwnModel own({dense_format(DType::kBF16), setting_.context_ranks}, &rank);
    const int layers = own.model.config().num_layers;
    RequestLoopOptions options{.sequences = 3, .context = kContext, .chunk = kChunk};
    options.plans = {Plan::draft(layers, WeightRead::kUpper), Plan::lookup()};
    options.pages = 14;
    options.admission = Admission::kExpected;
    options.host_bytes = 6 * own.pool.page_bytes();
    options.tail_bytes = 50 * own.pool.page_bytes();
    options.timing_seconds = 0.01;
    options.read_ahead_after = 0;
    options.ranks = &rank;
    if (all.rank() == 0) {
      options.folder =
          std::make_shared<ChunkFolder>(ChunkFolder::Options{place_.path(), 1 << 30, "b", kChunk});
    }
    RequestLoop loop(own.model, own.pool.shape(), options);
    if (all.rank() == 0) {
      lead(loop);
    } else {
      loop.run();
    }
    if (const auto error = loop.broken()) throw Error(*error);
  }

  void lead(RequestLoop& loop) {
    const std::jthread thread([&] { loop.run(); });
    const struct Stop {
      RequestLoop& loop;
      ~Stop() { loop.stop(); }
    } stop{loop};
    loop.read_ahead(text(2 * kChunk + 20, 3));
    for (int i = 0; i < kRequests; ++i) {
      Request request{.prompt = text(kChunk + 40, 1), .predict = 40};
      for (const TokenId token : text(20, 5 + i)) request.prompt.push_back(token);
      request.on_end = [this, i](const Request::Ended& ended) {
        if (ended.error) ends_.requests[i] = ended.error->what();
        tell_end();
      };
      try {
        loop.submit(std::move(request));
      } catch (const Error& error) {
        ends_.requests[i] = error.what();
        tell_end();
      }
    }
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return ended_ == kRequests; }));
  }

  void tell_end() {
    const std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_all();
  }

  static Tokens text(int count, int seed) {
    Tokens tokens(count);
    for (int i = 0; i < count; ++i) tokens[i] = (i * i + 7 * i * seed + seed) % 90;
    return tokens;
  }

  const Setting setting_;
  const int who_, at_, refuses_;
  TestRanks ranks_;
  const TestFolder place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ended_ = 0;
  Ends ends_;
};

// Why it was, of all that was said: everybody says the same, or nothing.
std::string reason(const Ends& ends) {
  const auto core = [](std::string_view said) {
    constexpr std::string_view kOfOthers = "the ranks of this model stopped: ";
    return said.starts_with(kOfOthers) ? said.substr(kOfOthers.size()) : said;
  };
  const std::string_view one = core(ends.ranks[0]);
  for (const std::string& said : ends.ranks) EXPECT_EQ(core(said), one);
  for (const std::string& said : ends.requests) {
    if (said.empty()) continue;  // it was done before
    EXPECT_EQ(core(said), one);
  }
  return std::string(one);
}

int trials() {
  const char* wanted = std::getenv("QUANTSPEC_RANDOM_SCHEDULES");
  return wanted != nullptr ? std::atoi(wanted) : 16;
}

class RanksFaults : public ::testing::TestWithParam<Setting> {};

TEST_P(RanksFaults, AllAreToldWhyOneFailed) {
  const Setting setting = GetParam();
  ASSERT_EQ(reason(Play(setting, 0, -1).run()), "");  // the first takes longer, in more steps
  const Ends good = Play(setting, 0, -1).run();
  ASSERT_EQ(reason(good), "");
  std::mt19937 random(setting.ranks);
  int failed = 0;
  for (int trial = 0; trial < trials(); ++trial) {
    const int who = static_cast<int>(random() % setting.ranks);
    const int at = static_cast<int>(random() % good.steps[who]);
    const std::string why = reason(Play(setting, who, at).run());
    // Times decide how many steps there are: some were not come to.
    if (why.empty()) continue;
    EXPECT_EQ(why, fmt::format("rank {} ran aground", who)) << "at " << at;
    ++failed;
    ASSERT_FALSE(HasFailure()) << "rank " << who << " at " << at << " of " << good.steps[who];
  }
  EXPECT_GT(failed, trials() / 2);
}

// One allocation is refused, whichever rank's it is.
TEST_P(RanksFaults, AllAreToldThatMemoryRanOut) {
  const Setting setting = GetParam();
  constexpr int kMany = 1 << 30;
  Play(setting, 0, -1, kMany).run();
  const int all = kMany - refuse_after;
  std::mt19937 random(setting.ranks + 1);
  int failed = 0;
  for (int trial = 0; trial < trials(); ++trial) {
    const int at = static_cast<int>(random() % all);
    const std::string why = reason(Play(setting, 0, -1, at).run());
    refuse_next = 0;
    if (why.empty()) continue;
    EXPECT_THAT(why, ::testing::ContainsRegex("memory|could not allocate"));
    ++failed;
    ASSERT_FALSE(HasFailure()) << "at " << at << " of " << all;
  }
  EXPECT_GT(failed, 0);
}

std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  const Setting& at = info.param;
  return fmt::format("{}_{}_by_{}", at.way == Way::kMemory ? "memory" : "network", at.ranks,
                     at.context_ranks);
}

INSTANTIATE_TEST_SUITE_P(Ways, RanksFaults,
                         ::testing::Values(Setting{Way::kMemory, 2, 1}, Setting{Way::kMemory, 4, 1},
                                           Setting{Way::kMemory, 4, 2},
                                           Setting{Way::kNetwork, 2, 1},
                                           Setting{Way::kNetwork, 4, 2}),
                         name_of);

}  // namespace
}  // namespace quantspec::testing
