// What a step's decisions cost, with every slot taken and a queue beside: printed, and bounded
// where the build is made for speed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/expect_linear_time.h"
#include "scheduler/scheduler.h"

namespace quantspec {
namespace {

// Every slot is taken, one of them by a prompt; as many owners as requests; the head of the queue
// waits for pages.
class FullHouse {
 public:
  explicit FullHouse(int slots) : scheduler_(options_of(slots)), slots_(slots) {
    const PoolState pool{.free_pages = pages(slots), .idle_pages = 0, .free_slots = slots};
    for (int i = 0; i < 5 * slots; ++i) submit(4000);
    for (int i = 0; i < slots; ++i) {
      const RequestId id = *scheduler_.candidate(now_, pool);
      check(scheduler_.admit(id, {}, now_, pool), "a slot");
      if (i > 0) scheduler_.slices_ran(id, {4000, 30}, false, 1);
    }
    check(std::ssize(scheduler_.decoding()) == slots - 1, "a full house");
  }

  // The decisions of a step, then its reports; returns the seconds that the former took.
  double step() {
    // A slot is free, so that the queue is looked at, and all but a few pages are promised.
    const PoolState pool{.free_pages = scheduler_.statistics().promised_pages + 10,
                         .idle_pages = 0,
                         .free_slots = 1};
    const Stopwatch clock;
    check(!scheduler_.victim(now_, pool), "a victim");
    const auto candidate = scheduler_.candidate(now_, pool);
    const std::vector<RequestId> ids = scheduler_.decoding();
    const auto slices = scheduler_.prefill(now_, pool);
    const double seconds = clock.seconds();
    check(!candidate, "the queue waits");
    check(std::ssize(ids) == slots_ - 1, "who decodes");

    results_.clear();
    for (const RequestId id : ids) results_.push_back({id, 2, 40});
    scheduler_.round_ran(results_, 0.02);
    if (slices) scheduler_.slices_ran(slices->id, {0, 4}, true, 0.01);
    now_ += 0.03;
    return seconds;
  }

 private:
  static std::size_t pages(int slots) { return 50 * static_cast<std::size_t>(slots); }
  static SchedulerOptions options_of(int slots) {
    return {.page_tokens = 128,
            .chunk_tokens = 1024,
            .total_pages = pages(slots),
            .context_tokens = 100'000,
            .most_waiting = 100'000};
  }
  void submit(int prompt) {
    const RequestId id = ++submitted_;
    scheduler_.submit({.id = id,
                       .owner = id % slots_,
                       .prompt_tokens = prompt,
                       .most_new_tokens = 2400,
                       .arrival = now_});
  }

  Scheduler scheduler_;
  int slots_;
  double now_ = 0;
  RequestId submitted_ = 0;
  std::vector<Scheduler::RoundResult> results_;
};

double median_step_seconds(int slots) {
  FullHouse house(slots);
  std::vector<double> seconds(1001);
  for (double& time : seconds) time = house.step();
  std::nth_element(seconds.begin(), seconds.begin() + 500, seconds.end());
  return seconds[500];
}

TEST(SchedulerCost, AStepsDecisionsTakeMicroseconds) {
  const double at_64 = median_step_seconds(64), at_256 = median_step_seconds(256);
  std::printf("decisions of a step, median: %.1f us at 64 sequences, %.1f us at 256\n", 1e6 * at_64,
              1e6 * at_256);
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(at_64, 50e-6);
  EXPECT_LE(at_256, 200e-6);
#endif
}

// Decisions and reports.
TEST(SchedulerCost, GrowsWithTheSequencesNotWithTheirSquare) {
  std::optional<FullHouse> house;
  expect_linear_time(
      100, [&](std::size_t slots) { house.emplace(static_cast<int>(slots)); },
      [&](std::size_t) {
        for (int i = 0; i < 100; ++i) house->step();
      });
}

TEST(SchedulerCost, AQueueOfAnyLengthIsAdmittedInItsTime) {
  constexpr int kSlots = 10;
  const PoolState pool{.free_pages = 100'000'000, .idle_pages = 0, .free_slots = kSlots};
  std::optional<Scheduler> scheduler;
  std::size_t submitted = 0;
  const auto fill = [&](std::size_t requests) {
    for (std::size_t i = 0; i < requests; ++i) {
      const RequestId id = ++submitted;
      scheduler->submit({.id = id,
                         .owner = id % 1000,
                         .priority = static_cast<int>(id % 3),
                         .prompt_tokens = 100,
                         .most_new_tokens = 10,
                         .arrival = 0.001 * i});
    }
  };
  expect_linear_time(
      2000,
      [&](std::size_t) {
        scheduler.emplace(SchedulerOptions{.page_tokens = 16,
                                           .chunk_tokens = 64,
                                           .total_pages = 100'000'000,
                                           .context_tokens = 1000,
                                           .most_waiting = 1'000'000});
      },
      [&](std::size_t requests) {
        fill(requests);
        while (const auto id = scheduler->candidate(100, pool)) {
          ASSERT_TRUE(scheduler->admit(*id, {}, 100, pool));
          scheduler->cancel(*id);
        }
      });
}

}  // namespace
}  // namespace quantspec
