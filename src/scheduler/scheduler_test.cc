#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/expect_error.h"

namespace quantspec {
namespace {

using Submission = Scheduler::Submission;

SchedulerOptions small_options(Admission admission = Admission::kGuaranteed) {
  return {.page_tokens = 4,
          .chunk_tokens = 16,
          .total_pages = 40,
          .context_tokens = 1000,
          .admission = admission,
          .watermark = 0,
          .most_prefill = 0.5};
}

// A scheduler beside a pool that is given by hand.
struct Fixture {
  explicit Fixture(const SchedulerOptions& options) : scheduler(options) {}

  Submission submit(RequestId id, int prompt, int most_new, int priority = 0, OwnerId owner = 0) {
    return scheduler.submit({id, owner, priority, prompt, most_new, now});
  }
  std::optional<RequestId> admit_next(Held held = {}) {
    const auto id = scheduler.candidate(now, pool);
    return id && scheduler.admit(*id, held, now, pool) ? id : std::nullopt;
  }
  // A whole prompt, whoever is next.
  void read(RequestId id, int prompt) {
    for (int end = 0; end < prompt;) {
      end = std::min(prompt, end + 16);
      scheduler.slices_ran(id, {end, scheduler.pages_of(prompt, end)}, false, 0.01);
    }
    scheduler.check_integrity();
  }
  void start(RequestId id, int prompt, int most_new, int priority = 0, OwnerId owner = 0) {
    ASSERT_EQ(submit(id, prompt, most_new, priority, owner), Submission::kAccepted);
    ASSERT_EQ(admit_next(), id);
    read(id, prompt);
  }
  void write(RequestId id, int tokens, std::size_t pages) {
    const Scheduler::RoundResult result{id, tokens, pages};
    scheduler.round_ran({&result, 1}, 0.01);
    scheduler.check_integrity();
  }

  Scheduler scheduler;
  PoolState pool{.free_pages = 40, .idle_pages = 0, .free_slots = 8};
  double now = 0;
};

TEST(Scheduler, PagesAreThoseOfWholeChunksAndOfWhatTheRingNoLongerHolds) {
  const Scheduler scheduler(small_options());
  EXPECT_EQ(scheduler.pages_of(15, 15), 2u);  // the ring holds 4 to 7 tokens
  EXPECT_EQ(scheduler.pages_of(16, 16), 4u);  // a whole chunk runs ahead
  EXPECT_EQ(scheduler.pages_of(16, 23), 4u);
  EXPECT_EQ(scheduler.pages_of(16, 24), 5u);
  EXPECT_EQ(scheduler.pages_of(40, 16), 4u);
  EXPECT_EQ(scheduler.pages_of(3, 3), 0u);
}

TEST(Scheduler, RefusesWhatCanNeverFitAndWhatTheQueueCannotHold) {
  SchedulerOptions options = small_options();
  options.most_waiting = 2;
  Fixture f(options);
  EXPECT_EQ(f.submit(1, 900, 102), Submission::kExceedsContext);
  EXPECT_EQ(f.submit(1, 2'000'000'000, 2'000'000'000), Submission::kExceedsContext);
  EXPECT_EQ(f.submit(1, 164, 5), Submission::kExceedsPages);  // 168 positions: 41 pages
  EXPECT_EQ(f.submit(1, 160, 8), Submission::kAccepted);
  EXPECT_EQ(f.submit(2, 1, 1), Submission::kAccepted);
  EXPECT_EQ(f.submit(3, 1, 1), Submission::kQueueFull);
  EXPECT_TRUE(f.scheduler.cancel(2));
  EXPECT_FALSE(f.scheduler.cancel(2));
  EXPECT_FALSE(f.scheduler.cancel(3));
  EXPECT_EQ(f.submit(3, 1, 1), Submission::kAccepted);
  EXPECT_EQ(f.admit_next(), 1u);
  EXPECT_EQ(f.submit(4, 1, 1), Submission::kAccepted);  // who is admitted does not wait
  f.scheduler.check_integrity();
}

TEST(Scheduler, OptionsThatCannotBeAreNamed) {
  SchedulerOptions options = small_options();
  options.most_prefill = 1.5;
  expect_error(ErrorKind::kInvalidRequest, {"most share of prefill"}, [&] { Scheduler{options}; });
  options = small_options();
  options.least_prefill = 0;
  expect_error(ErrorKind::kInvalidRequest, {"least share of prefill"}, [&] { Scheduler{options}; });
  options = small_options();
  options.ageing = 0;
  expect_error(ErrorKind::kInvalidRequest, {"ageing"}, [&] { Scheduler{options}; });
  options = small_options();
  options.token_interval = -1;
  expect_error(ErrorKind::kInvalidRequest, {"interval between tokens"},
               [&] { Scheduler{options}; });
}

TEST(Scheduler, GuaranteedAdmissionPromisesAllPagesButThoseOfTheCachedPrefix) {
  Fixture f(small_options());
  f.submit(1, 64, 24);  // 87 positions: 20 pages
  f.submit(2, 64, 24);
  f.submit(3, 64, 24);
  EXPECT_EQ(f.admit_next(), 1u);
  EXPECT_EQ(f.admit_next(), 2u);
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 40u);
  EXPECT_EQ(f.scheduler.candidate(0, f.pool), std::nullopt);  // not even with all of its prompt
  f.read(1, 64);
  f.pool.free_pages = 24;
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 24u);
  f.pool.idle_pages = 16;  // 16 came free, of which the tree keeps 12 that it shares with 1
  EXPECT_EQ(f.scheduler.candidate(0, f.pool), 3u);
  EXPECT_FALSE(f.scheduler.admit(3, {}, 0, f.pool));
  EXPECT_TRUE(f.scheduler.admit(3, {48, 12}, 0, f.pool));
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 32u);
}

TEST(Scheduler, SlotsBoundTheAdmitted) {
  Fixture f(small_options());
  f.submit(1, 4, 4);
  f.pool.free_slots = 0;
  EXPECT_EQ(f.admit_next(), std::nullopt);
  EXPECT_FALSE(f.scheduler.admit(1, {}, 0, f.pool));
  f.pool.free_slots = 1;
  EXPECT_EQ(f.admit_next(), 1u);
}

TEST(Scheduler, TheHeadOfTheQueueIsNotOvertakenByASmallerOne) {
  Fixture f(small_options());
  f.start(1, 64, 40);
  f.pool.free_pages = 24;
  f.submit(2, 64, 40);
  f.submit(3, 4, 4);
  EXPECT_EQ(f.admit_next(), std::nullopt);
  f.scheduler.finished(1);
  f.pool.free_pages = 40;
  EXPECT_EQ(f.admit_next(), 2u);
  EXPECT_EQ(f.admit_next(), 3u);
}

TEST(Scheduler, ReadsAChunkToItsEndThenWhatIsLeastOfTheFirstClass) {
  Fixture f(small_options());
  f.submit(1, 40, 4);
  f.submit(2, 20, 4);
  f.submit(3, 33, 4, 1);
  EXPECT_EQ(f.admit_next(), 3u);
  EXPECT_EQ(f.admit_next(), 1u);
  EXPECT_EQ(f.scheduler.prefill(0, f.pool)->id, 3u);
  f.scheduler.slices_ran(3, {0, 4}, true, 0.1);
  EXPECT_EQ(f.admit_next(), 2u);
  EXPECT_TRUE(f.scheduler.pause(3));  // its chunk goes on
  EXPECT_EQ(f.scheduler.prefill(0, f.pool)->id, 3u);
  f.scheduler.slices_ran(3, {16, 4}, false, 0.1);
  EXPECT_EQ(f.scheduler.prefill(0, f.pool)->id, 2u);  // less is left of it than of 1
  EXPECT_TRUE(f.scheduler.resume(3));
  EXPECT_EQ(f.scheduler.prefill(0, f.pool)->id, 3u);
  f.scheduler.slices_ran(3, {16, 8}, true, 0.1);
  EXPECT_TRUE(f.scheduler.cancel(3));
  EXPECT_EQ(f.scheduler.prefill(0, f.pool)->id, 2u);
  EXPECT_TRUE(std::isinf(f.scheduler.prefill(0, f.pool)->seconds));  // nobody decodes
  f.scheduler.check_integrity();
}

TEST(Scheduler, SlicesWaitForWhatARoundEarned) {
  Fixture f(small_options());
  f.start(1, 4, 10);
  f.submit(2, 100, 4);
  EXPECT_EQ(f.admit_next(), 2u);
  EXPECT_EQ(f.scheduler.prefill(0, f.pool), std::nullopt);
  f.write(1, 1, 0);
  EXPECT_DOUBLE_EQ(f.scheduler.prefill(0, f.pool)->seconds, 0.01);  // half of the time
  f.scheduler.slices_ran(2, {0, 4}, true, 0.025);
  f.write(1, 1, 0);
  EXPECT_EQ(f.scheduler.prefill(0, f.pool), std::nullopt);
  f.write(1, 1, 0);
  EXPECT_NEAR(f.scheduler.prefill(0, f.pool)->seconds, 0.005, 1e-12);
  f.scheduler.pause(1);  // nobody decodes
  EXPECT_TRUE(std::isinf(f.scheduler.prefill(0, f.pool)->seconds));
}

TEST(Scheduler, PausedRequestsTakeNoPart) {
  Fixture f(small_options());
  f.start(1, 4, 10);
  f.start(2, 4, 10);
  f.submit(3, 4, 10);
  EXPECT_TRUE(f.scheduler.pause(1));
  EXPECT_TRUE(f.scheduler.pause(3));
  EXPECT_EQ(f.scheduler.decoding(), std::vector<RequestId>{2});
  EXPECT_EQ(f.admit_next(), std::nullopt);
  EXPECT_TRUE(f.scheduler.resume(1));
  EXPECT_TRUE(f.scheduler.resume(3));
  EXPECT_EQ(f.scheduler.decoding(), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(f.admit_next(), 3u);
  EXPECT_FALSE(f.scheduler.pause(9));
}

TEST(Scheduler, PausedRequestsGiveWayToWhoWaits) {
  Fixture f(small_options());
  f.start(1, 4, 10);
  f.start(2, 4, 10);
  f.submit(3, 40, 10);
  f.admit_next();
  f.scheduler.slices_ran(3, {0, 4}, true, 0.01);
  f.pool.free_slots = 0;
  EXPECT_EQ(f.scheduler.gives_way(0), std::nullopt);
  for (const RequestId id : {1, 2, 3}) f.scheduler.pause(id);
  EXPECT_EQ(f.scheduler.gives_way(0), std::nullopt);  // nobody waits
  f.submit(4, 4, 10);
  f.scheduler.pause(4);
  EXPECT_EQ(f.scheduler.gives_way(0), std::nullopt);
  f.scheduler.resume(4);
  EXPECT_EQ(f.admit_next(), std::nullopt);
  EXPECT_EQ(f.scheduler.gives_way(0), 2u);  // of them the last but 3, whose chunk is in flight
  f.scheduler.preempted(2, 0);
  f.pool.free_slots = 1;
  EXPECT_EQ(f.admit_next(), 4u);
  f.submit(5, 4, 10);
  f.scheduler.resume(1);
  EXPECT_EQ(f.scheduler.gives_way(0), std::nullopt);
  f.scheduler.resume(2);
  EXPECT_EQ(f.admit_next(), 2u);  // before who came later
  f.scheduler.check_integrity();
}

// Whether, of the requests 3 of owner 1 and 4 of owner 2, that of owner 1 is admitted first, after
// `what` became of its request 1, of 64 tokens, beside owner 2's, of 40.
bool is_owner_1_first(const std::function<void(Fixture&)>& what) {
  Fixture f(small_options());
  f.submit(1, 64, 1, 0, 1);
  f.submit(2, 40, 1, 0, 2);
  f.submit(3, 4, 1, 0, 1);
  f.submit(4, 4, 1, 0, 2);
  EXPECT_EQ(f.admit_next(), 1u);
  EXPECT_EQ(f.admit_next(), 2u);
  what(f);
  return f.admit_next() == 3u;
}

TEST(Scheduler, OwnersPayForWhatWasReadForThem) {
  EXPECT_FALSE(is_owner_1_first([](Fixture& f) { f.read(1, 64); }));
  EXPECT_FALSE(is_owner_1_first([](Fixture& f) {
    f.read(1, 64);
    f.scheduler.cancel(1);
  }));
  EXPECT_TRUE(is_owner_1_first([](Fixture& f) { f.scheduler.cancel(1); }));
  EXPECT_TRUE(is_owner_1_first([](Fixture& f) { f.scheduler.found(1, {48, 12}); }));
}

// --- kExpected ---

// Lets the owner's requests write so many tokens, thus expect as many.
void teach(Fixture& f, int tokens) {
  f.start(100, 4, tokens);
  if (tokens > 1) f.write(100, tokens - 1, 0);
  f.scheduler.finished(100);
}

TEST(SchedulerExpected, AdmitsByWhatItsOwnersRequestsWrote) {
  Fixture f(small_options(Admission::kExpected));
  f.submit(1, 16, 140);  // 38 pages
  f.submit(2, 16, 140);
  EXPECT_EQ(f.admit_next(), 1u);  // nothing is known yet: as if guaranteed
  EXPECT_EQ(f.admit_next(), std::nullopt);
  f.scheduler.cancel(1);
  f.scheduler.cancel(2);
  teach(f, 17);
  for (const RequestId id : {3, 4, 5, 6, 7, 8}) f.submit(id, 16, 140);  // 32 positions: 7 pages
  for (const RequestId id : {3, 4, 5, 6, 7}) EXPECT_EQ(f.admit_next(), id);
  EXPECT_EQ(f.admit_next(), std::nullopt);
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 35u);
}

TEST(SchedulerExpected, LeavesTheWatermarkUnlessNobodyIsAdmitted) {
  SchedulerOptions options = small_options(Admission::kExpected);
  options.watermark = 0.05;  // 2 pages
  Fixture f(options);
  teach(f, 1);
  f.submit(1, 64, 2);  // 16 pages
  f.submit(2, 96, 2);  // 24
  EXPECT_EQ(f.admit_next(), 1u);
  EXPECT_EQ(f.admit_next(), std::nullopt);  // all but none
  f.scheduler.cancel(1);
  f.scheduler.cancel(2);
  f.submit(3, 160, 2);  // all 40
  EXPECT_EQ(f.admit_next(), 3u);
}

TEST(SchedulerExpected, PreemptsThePausedThenTheLowestClassThenTheLastAdmitted) {
  Fixture f(small_options(Admission::kExpected));
  teach(f, 1);
  f.start(1, 16, 60, 1);
  f.start(2, 16, 60, 0);
  f.start(3, 16, 60, 0);
  f.start(4, 16, 60, 1);
  f.start(5, 16, 60, 1);
  f.scheduler.pause(4);
  for (const RequestId id : {1, 2, 3, 5}) f.write(id, 8, 4);  // 24 positions: a page each
  f.pool = {.free_pages = 1, .idle_pages = 3, .free_slots = 3};
  EXPECT_EQ(f.scheduler.victim(0, f.pool), std::nullopt);
  f.pool = {.free_pages = 0, .idle_pages = 3, .free_slots = 3};
  for (const auto& [id, pages_left] : {std::pair(4u, 3u), {3, 2}, {2, 2}}) {
    EXPECT_EQ(f.scheduler.victim(0, f.pool), id);
    f.scheduler.preempted(id, 0);
    f.scheduler.check_integrity();
    f.pool.idle_pages = pages_left;  // it shared what it had
  }
  EXPECT_EQ(f.scheduler.victim(0, f.pool), std::nullopt);
  EXPECT_EQ(f.scheduler.decoding(), (std::vector<RequestId>{1, 5}));
}

TEST(SchedulerExpected, ThePreemptedComeBackBeforeNewOnesAndAreReadAgain) {
  Fixture f(small_options(Admission::kExpected));
  teach(f, 1);
  f.start(1, 16, 60);
  f.start(2, 16, 60);
  f.write(2, 9, 5);                                // 10 tokens, 25 positions
  f.submit(3, 4, 1, /*priority=*/0, /*owner=*/7);  // an owner who got less
  f.scheduler.preempted(2, 0);
  EXPECT_EQ(f.scheduler.statistics().preempted, 1u);
  EXPECT_EQ(f.admit_next({0, 0}), 2u);
  EXPECT_EQ(f.scheduler.decoding(), std::vector<RequestId>{1});
  f.scheduler.pause(1);
  f.read(2, 16);
  for (const int end : {20, 24, 25}) {  // what it wrote, in pieces
    EXPECT_EQ(f.scheduler.prefill(0, f.pool)->id, 2u);
    f.scheduler.slices_ran(2, {end, f.scheduler.pages_of(16, end)}, false, 0.1);
  }
  EXPECT_EQ(f.scheduler.decoding(), std::vector<RequestId>{2});
  f.write(2, 50, 5);  // 60 in all
  f.scheduler.finished(2);
}

TEST(SchedulerExpected, WhoWasPreemptedAgesBeforeItIsAdmittedAgain) {
  Fixture f(small_options(Admission::kExpected));
  teach(f, 1);
  f.start(1, 16, 60, 0);
  f.start(2, 16, 60, 2);
  f.start(3, 16, 60, 2);
  f.scheduler.preempted(1, 0);
  f.submit(4, 16, 60, 2);
  f.now = 61;  // two classes up
  EXPECT_EQ(f.admit_next(), 1u);
  f.read(1, 16);
  for (const RequestId id : {1, 2, 3}) f.write(id, 8, 4);
  f.pool = {.free_pages = 2, .idle_pages = 0, .free_slots = 3};
  EXPECT_EQ(f.scheduler.victim(f.now, f.pool), 3u);
}

TEST(SchedulerExpected, WhatWasSwappedInDecodesAtOnce) {
  Fixture f(small_options(Admission::kExpected));
  f.start(1, 16, 20);
  f.write(1, 9, 5);
  f.scheduler.preempted(1, 0);
  EXPECT_EQ(f.admit_next(), 1u);
  f.scheduler.found(1, {25, 5});
  EXPECT_EQ(f.scheduler.decoding(), std::vector<RequestId>{1});
  f.scheduler.check_integrity();
}

TEST(SchedulerExpected, APreemptionMakesAdmissionCautiousForAWhile) {
  Fixture f(small_options(Admission::kExpected));
  teach(f, 41);
  f.start(1, 16, 140);  // 56 positions: 13 pages
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 13u - 4);
  f.scheduler.preempted(1, 0);
  EXPECT_EQ(f.admit_next(), 1u);  // 16 + 1.25 * 41 - 1 = 67 positions: 15
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 15u);
  f.scheduler.cancel(1);
  f.now = 3000;
  f.submit(2, 16, 140);
  EXPECT_EQ(f.admit_next(), 2u);
  EXPECT_EQ(f.scheduler.statistics().promised_pages, 13u);
}

TEST(SchedulerExpected, BrokenPromisesAreBugs) {
  Fixture f(small_options());
  f.start(1, 16, 60);
  f.write(1, 8, 4);
  f.pool = {.free_pages = 0, .idle_pages = 0, .free_slots = 3};
  expect_error(ErrorKind::kInternal, {"promised"}, [&] { f.scheduler.victim(0, f.pool); });
  expect_error(ErrorKind::kInternal, {"no such request"}, [&] { f.scheduler.finished(7); });
}

}  // namespace
}  // namespace quantspec
