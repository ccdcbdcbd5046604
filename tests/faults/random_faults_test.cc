// All that may go wrong, at random and at once: what a request was told is what it gets alone, and
// where it was told less it was told why.
#include <chrono>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "tests/faults/refusals.h"
#include "tests/faults/support.h"

namespace quantspec::testing {
namespace {

// A random request, as a client sees it.
struct Client {
  RequestId id = 0;
  std::size_t which = 0;
  int throws_at = -1, cancels_at = -1, pauses_at = -1;  // calls, steps, tokens; negative: never
  int calls = 0;
  bool for_ever = false;  // it does not read on
  Told told = {};
};

class RandomFaults : public Faults {
 protected:
  int uniform(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool one_in(int n) { return uniform(1, n) == 1; }
  Tokens text(int count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = uniform(0, model_.model.config().vocab_size - 1);
    return tokens;
  }
  void make_catalogue(int count) {
    const std::vector<Tokens> beginnings = {text(4 * kChunk), text(kChunk + 5), {}};
    for (int i = 0; i < count; ++i) {
      Request request{.prompt = beginnings[i % beginnings.size()]};
      if (!request.prompt.empty()) request.prompt.resize(uniform(1, std::ssize(request.prompt)));
      const Tokens rest = text(uniform(1, kChunk + 10));
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
  RequestLoopOptions random_options() {
    RequestLoopOptions options = this->options(uniform(1, 5));
    options.share_prefixes = !one_in(6);
    options.pages = uniform(14, 24);
    if (one_in(2)) options.admission = Admission::kExpected;
    options.host_bytes = (one_in(2) ? 60 : 0) * model_.pool.page_bytes();
    if (one_in(2)) look_up(options);
    return options;
  }
  static void look_up(RequestLoopOptions& options) {
    options.plans.push_back(Plan::lookup());
    options.lookup_history = 1000;
  }
  std::unique_ptr<Client> random_client(RequestLoop& loop) {
    auto client = std::make_unique<Client>();
    client->which = uniform(0, std::ssize(catalogue_) - 1);
    if (one_in(5)) client->throws_at = uniform(1, 8);
    if (one_in(6)) client->cancels_at = uniform(0, 20);
    if (one_in(4)) client->pauses_at = uniform(0, 20);
    client->for_ever = one_in(4);
    Request request =
        telling(catalogue_[client->which], client->told, [at = client.get()]() -> bool {
          if (++at->calls == at->throws_at) throw std::runtime_error("thrown");
          return true;
        });
    if (one_in(2)) request.draft_len = uniform(0, 6);
    request.owner = uniform(0, 2);
    request.priority = uniform(0, 1);
    client->id = loop.submit(std::move(request));
    return client;
  }
  // Everything that a client was told is what it gets alone, up to where it ended.
  void expect_exact(const Client& client) {
    const Told& expected = expected_[client.which];
    client.told.expect_prefix_of(expected);
    ASSERT_EQ(client.told.ends.size(), 1u);
    const Request::Ended& end = client.told.ends[0];
    ++ends_[static_cast<int>(end.end)];
    if (end.end == RequestEnd::kDone) {
      EXPECT_EQ(client.told.tokens.size(), expected.tokens.size());
    }
    if (end.end != RequestEnd::kFailed) return;
    ASSERT_TRUE(end.error);
    const bool threw = client.calls == client.throws_at;
    EXPECT_EQ(end.error->kind(), threw ? ErrorKind::kInternal : ErrorKind::kOutOfMemory)
        << end.error->what();
    if (!threw) return;
    EXPECT_STREQ(end.error->what(), "who was told of tokens: thrown");
  }

  std::mt19937 random_{11};
  std::vector<Request> catalogue_;
  std::vector<Told> expected_;
  int ends_[3] = {};
};

TEST_F(RandomFaults, RequestsGiveWhatTheyGiveAloneOrSayWhyNot) {
  make_catalogue(24);
  const char* wanted = std::getenv("QUANTSPEC_RANDOM_SCHEDULES");
  const int schedules = wanted != nullptr ? std::atoi(wanted) : 120;
  for (int schedule = 0; schedule < schedules; ++schedule) {
    const RequestLoopOptions options = random_options();
    auto loop = this->loop(options);
    std::vector<std::unique_ptr<Client>> clients;
    for (int left = uniform(3, 12), idle = 0; idle < 3;) {
      while (left > 0 && one_in(3)) clients.push_back(random_client(loop)), --left;
      for (const auto& client : clients) {
        const auto tokens = std::ssize(client->told.tokens);
        if (client->cancels_at-- == 0) loop.cancel(client->id);
        if (client->pauses_at >= 0 && tokens >= client->pauses_at) {
          loop.pause(client->id);
          client->pauses_at = -2;
        }
        if (client->pauses_at < -1 && !client->for_ever && --client->pauses_at < -20) {
          loop.resume(client->id);
          client->pauses_at = -1;
        }
      }
      if (one_in(30) && !clients.empty()) {
        loop.preempt(clients[uniform(0, std::ssize(clients) - 1)]->id);
      }
      refuse_one_in = schedule % 3 == 0 ? 0 : 20;
      bool worked = false;
      try {
        worked = loop.step();
      } catch (...) {
        refuse_one_in = 0;
        throw;
      }
      refuse_one_in = 0;
      loop.check_integrity();
      const bool all_here = left == 0 && std::ranges::none_of(clients, [](const auto& client) {
                              return client->pauses_at < -1 && !client->for_ever;
                            });
      idle = worked || !all_here ? 0 : idle + 1;
    }
    for (const auto& client : clients) {
      if (client->told.ends.empty()) {
        EXPECT_TRUE(client->for_ever && client->pauses_at < -1);
        loop.cancel(client->id);
      }
    }
    run(loop);
    for (const auto& client : clients) expect_exact(*client);
    expect_idle(loop, options.sequences, options.pages);
    if (HasFailure()) FAIL() << "in schedule " << schedule;
  }
  for (const int count : ends_) EXPECT_GT(count, schedules / 6);
  EXPECT_GT(refused, 0u);
}

// Threads that submit, cancel, pause, resume, throw and have texts read ahead, beside the one that
// runs the loop. Under ThreadSanitizer for QUANTSPEC_SECONDS=60.
TEST_F(RandomFaults, ThreadsComeAndGo) {
  make_catalogue(12);
  const char* wanted = std::getenv("QUANTSPEC_SECONDS");
  const double seconds = wanted != nullptr ? std::atof(wanted) : 1.5;
  RequestLoopOptions options = this->options(4);
  options.pages = 24;
  options.admission = Admission::kExpected;
  options.max_waiting = 6;
  options.read_ahead_after = 0;
  look_up(options);
  auto loop = this->loop(options);
  std::thread runner([&] { loop.run(); });
  std::atomic<int> submitted{0}, ended{0}, refusals{0}, done{0};
  const Stopwatch clock;
  const auto client = [&](unsigned seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int below) { return static_cast<int>(random() % below); };
    std::vector<RequestId> mine;
    const auto submit = [&] {
      const std::size_t which = draw(std::ssize(catalogue_));
      Request request = catalogue_[which];
      request.draft_len = draw(2) == 0 ? std::optional(draw(5)) : std::nullopt;
      const int throws_at = draw(6) == 0 ? 1 + draw(10) : -1;
      auto told = std::make_shared<Told>();
      request.on_tokens = [told, throws_at, calls = 0](const Step& step) mutable {
        told->add(step);
        if (++calls == throws_at) throw std::runtime_error("thrown");
        return true;
      };
      request.on_end = [&, told, which](const Request::Ended& end) {
        told->expect_prefix_of(expected_[which]);
        if (end.end == RequestEnd::kDone) {
          EXPECT_EQ(told->tokens.size(), expected_[which].tokens.size());
          ++done;
        }
        ++ended;
      };
      try {
        mine.push_back(loop.submit(std::move(request)));
        ++submitted;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
        ++refusals;
      }
    };
    while (clock.seconds() < seconds) {
      for (int i = draw(8) == 0 ? 12 : 1; i > 0; --i) submit();  // more at once than may wait
      if (!mine.empty() && draw(4) == 0) loop.cancel(mine[draw(std::ssize(mine))]);
      if (!mine.empty() && draw(3) == 0) loop.pause(mine[draw(std::ssize(mine))]);
      if (draw(8) == 0) {
        for (const RequestId id : mine) loop.resume(id);
      }
      if (draw(8) == 0) loop.read_ahead(catalogue_[draw(std::ssize(catalogue_))].prompt);
      EXPECT_LE(loop.statistics().scheduler.admitted, 4u);
      std::this_thread::sleep_for(std::chrono::microseconds(draw(4000)));
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(client, i + 1);
  for (std::thread& thread : threads) thread.join();
  loop.stop();
  runner.join();
  EXPECT_EQ(ended, submitted);  // every one once: those that lived when it stopped, too
  EXPECT_GT(done, 0);
  EXPECT_GT(refusals, 0);
  expect_idle(loop, 4, 24);
  EXPECT_THROW(loop.submit(catalogue_[0]), Error);
}

}  // namespace
}  // namespace quantspec::testing
