// Who gets how much, over long runs of a simulated engine: nobody starves, owners are served
// equally, prefill and decoding have their shares.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "scheduler/simulated_engine.h"

namespace quantspec {
namespace {

SimulationOptions options_of(Admission admission = Admission::kGuaranteed) {
  return {.scheduler = {.page_tokens = 16,
                        .chunk_tokens = 64,
                        .total_pages = 200,
                        .context_tokens = 4000,
                        .most_waiting = 64,
                        .admission = admission,
                        .ageing = 5},
          .slots = 6};
}

SimulatedRequest request_of(RequestId id, OwnerId owner, int prompt, int writes, int priority = 0) {
  return {.info = {.id = id,
                   .owner = owner,
                   .priority = priority,
                   .prompt_tokens = prompt,
                   .most_new_tokens = writes},
          .writes = writes};
}

// Steps until `id` has ended, while `attack` submits what it can. Returns the seconds it took.
template <typename Attack>
double seconds_until_end(SimulatedEngine& engine, RequestId id, const Attack& attack) {
  const double start = engine.now();
  while (engine.live(id) && engine.now() < start + 1000) {
    attack();
    engine.step();
  }
  EXPECT_FALSE(engine.live(id)) << "starves";
  return engine.now() - start;
}

// More than a full queue takes.
constexpr double kMostSeconds = 90;

TEST(SchedulerStarvation, OwnersThatAreAlwaysNewDoNotKeepAnOldOneOut) {
  for (const Admission admission : {Admission::kGuaranteed, Admission::kExpected}) {
    SimulatedEngine engine(options_of(admission));
    RequestId next = 1;
    const auto attack = [&] {
      const auto stranger = [&] { return request_of(next, 1000 + next, 200, 30); };
      for (++next; engine.num_live() < 40; ++next) engine.submit(stranger());
    };
    // An owner that has got much, thus comes last.
    engine.submit(request_of(0, 7, 1000, 1000));
    engine.drain();
    for (int i = 0; i < 50; ++i) {
      attack();
      engine.step();
    }
    engine.submit(request_of(1, 7, 600, 60));
    EXPECT_LT(seconds_until_end(engine, 1, attack), kMostSeconds);
  }
}

TEST(SchedulerStarvation, HigherClassesDelayALowerOneButForAWhile) {
  for (const Admission admission : {Admission::kGuaranteed, Admission::kExpected}) {
    SimulatedEngine engine(options_of(admission));
    RequestId next = 1;
    const auto attack = [&] {
      for (++next; engine.num_live() < 40; ++next) engine.submit(request_of(next, 1, 150, 40, 3));
    };
    attack();
    engine.submit(request_of(1, 2, 600, 60, 0));
    const double seconds = seconds_until_end(engine, 1, attack);
    EXPECT_LT(seconds, 3 * 5 + kMostSeconds);
    EXPECT_GT(seconds, 3 * 5);  // strict until then
  }
}

TEST(SchedulerStarvation, ShortPromptsDelayALongOneOfTheirOwnerButForAWhile) {
  SimulatedEngine engine(options_of());
  engine.submit(request_of(2, 2, 5, 2500));  // decodes, so that a step reads about a chunk
  while (engine.scheduler().decoding().empty()) engine.step();
  engine.submit(request_of(1, 1, 600, 10));
  RequestId next = 3;
  const double seconds = seconds_until_end(engine, 1, [&] {
    for (; engine.num_live() < 6; ++next) engine.submit(request_of(next, 1, 60, 1));
  });
  EXPECT_TRUE(engine.live(2));
  EXPECT_LT(seconds, 5 * 600 / 4000.0 + 2);
}

TEST(SchedulerStarvation, SmallRequestsDoNotPassAGreatOneThatWaitsForPages) {
  SimulatedEngine engine(options_of());
  RequestId next = 1;
  const auto attack = [&] {
    for (++next; engine.num_live() < 20; ++next) engine.submit(request_of(next, next % 3, 100, 40));
  };
  for (int i = 0; i < 20; ++i) {
    attack();
    engine.step();
  }
  engine.submit(request_of(1, 9, 3000, 100));  // 194 of the 200 pages
  EXPECT_LT(seconds_until_end(engine, 1, attack), kMostSeconds);
}

TEST(SchedulerStarvation, ThePreemptedEndBesideEndlessHigherClasses) {
  SimulationOptions options = options_of(Admission::kExpected);
  options.scheduler.total_pages = 40;
  for (const bool swaps : {false, true}) {
    options.swaps = swaps;
    SimulatedEngine engine(options);
    // As all wrote little so far, more is admitted than fits.
    for (RequestId id = 2; id < 40; ++id) engine.submit(request_of(id, 1, 60, 3));
    engine.drain();
    engine.submit(request_of(1, 1, 60, 300, 0));
    engine.step();
    EXPECT_TRUE(engine.admitted(1));
    RequestId next = 100;
    const auto attack = [&] {
      for (; engine.num_live() < 20; ++next) engine.submit(request_of(next, 1, 60, 300, 2));
    };
    EXPECT_LT(seconds_until_end(engine, 1, attack), kMostSeconds);
    const auto& trace = engine.trace();
    EXPECT_GT(std::count(trace.begin(), trace.end(), 256 + 'p'), 0) << "it was never preempted";
  }
}

// --- equal service ---

TEST(SchedulerOwners, WithEqualDemandGetEqualService) {
  struct Kind {
    int prompt, writes, backlog;
  };
  // As different as can be: long prompts, long texts, few, many. More of each than there are slots,
  // so that each always waits.
  const std::array<Kind, 4> kinds{{{800, 5, 8}, {20, 150, 8}, {100, 50, 20}, {30, 10, 20}}};
  SimulatedEngine engine(options_of());
  RequestId next = 0;
  std::array<std::vector<RequestId>, 4> requests;
  double most_cost = 0;
  for (int step = 0; step < 12'000; ++step) {
    for (OwnerId owner = 0; owner < kinds.size(); ++owner) {
      const Kind& kind = kinds[owner];
      most_cost = std::max(most_cost, kind.prompt + 2.0 * kind.writes);
      auto& live = requests[owner];
      std::erase_if(live, [&](RequestId id) { return !engine.live(id); });
      while (std::ssize(live) < kind.backlog) {
        live.push_back(next);
        engine.submit(request_of(next++, owner, kind.prompt, kind.writes));
      }
    }
    engine.step();
  }
  double least = 1e30, most = 0;
  for (OwnerId owner = 0; owner < kinds.size(); ++owner) {
    least = std::min(least, engine.served(owner));
    most = std::max(most, engine.served(owner));
  }
  // A slot is given to the least counter, and may bring its owner what is admitted by it.
  const double bound = 2 * 6 * most_cost;
  EXPECT_GT(least, 10 * bound);
  EXPECT_LT(most - least, bound);
}

TEST(SchedulerOwners, OneWithManyRequestsDoesNotDelayOneWithFew) {
  SimulatedEngine engine(options_of());
  RequestId next = 1;
  double longest = 0;
  int measured = 0;
  constexpr RequestId kNone = 0;
  RequestId single = kNone;
  double since = 0;
  for (int step = 0; step < 6000; ++step) {
    for (; engine.num_live() < 40; ++next) engine.submit(request_of(next, 1, 100, 20));
    if (single == kNone && step % 50 == 0) {
      single = next;
      since = engine.now();
      engine.submit(request_of(next++, 2, 100, 20));
    }
    engine.step();
    if (single != kNone && (engine.admitted(single) || !engine.live(single))) {
      longest = std::max(longest, engine.now() - since);
      single = kNone;
      ++measured;
    }
  }
  EXPECT_GT(measured, 80);
  // The next slot is its, of 6 that come free within a request's time; 40 would wait 5 s.
  EXPECT_LT(longest, 0.6);
}

// --- shares of time ---

TEST(SchedulerTime, SharesHoldWithBothKindsOfWork) {
  for (const double most : {0.3, 0.5, 0.7}) {
    for (const double slice : {0.0005, 0.030}) {
      SimulationOptions options = options_of();
      options.scheduler.most_prefill = most;
      options.slice_seconds = slice;
      options.slices = 8;
      SimulatedEngine engine(options);
      RequestId next = 0;
      std::array<std::optional<RequestId>, 6> live;  // prompts and texts, three of each
      for (int step = 0; step < 6000; ++step) {
        for (std::size_t i = 0; i < live.size(); ++i) {
          if (live[i] && engine.live(*live[i])) continue;
          live[i] = next++;
          engine.submit(i % 2 ? request_of(*live[i], i, 5, 300) : request_of(*live[i], i, 900, 2));
        }
        engine.step();
      }
      const double share =
          engine.prefill_seconds() / (engine.prefill_seconds() + engine.decode_seconds());
      EXPECT_NEAR(share, most, 0.05 * most) << slice;
      EXPECT_GT(engine.decode_seconds(), 5);
    }
  }
}

TEST(SchedulerTime, ALongPromptKeepsTheIntervalBetweenTokens) {
  SimulationOptions options = options_of();
  options.scheduler.most_prefill = 0.5;
  options.scheduler.token_interval = 0.030;
  options.slice_seconds = 0.002;
  options.slices = 40;
  SimulatedEngine engine(options);
  for (RequestId id = 0; id < 5; ++id) engine.submit(request_of(id, id, 5, 400));
  while (engine.scheduler().decoding().size() < 5) engine.step();
  engine.forget_longest_interval();
  engine.submit(request_of(9, 9, 1200, 1));
  while (engine.live(9) && engine.live(0)) engine.step();
  EXPECT_FALSE(engine.live(9));
  EXPECT_LE(engine.longest_interval(), 0.030 + 0.002 + 1e-9);  // and 15 ms without it
  EXPECT_GT(engine.longest_interval(), 0.028);
}

}  // namespace
}  // namespace quantspec
