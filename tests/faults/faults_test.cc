// What goes wrong for one request of a RequestLoop, and nothing of it for the others: callbacks
// that throw, requests that cannot be, clients that do not read on, memory that is refused.
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "base/expect_error.h"
#include "engine/fields.h"
#include "tests/faults/refusals.h"
#include "tests/faults/support.h"

namespace quantspec::testing {
namespace {

TEST_F(Faults, ACallbackThatThrowsEndsItsOwnRequestAlone) {
  const Told expected = alone(request(40, 30));
  for (const int at : {1, 2, 5}) {  // calls: the first is of the prompt
    auto loop = this->loop(options());
    Told before, thrower, behind;
    int calls = 0;
    loop.submit(telling(request(40, 30), before));
    loop.submit(telling(request(40, 30), thrower, [&]() -> bool {
      if (++calls == at) fail(ErrorKind::kInvalidRequest, "enough of it");
      return true;
    }));
    loop.submit(telling(request(40, 30), behind));
    run(loop);
    expect_failed(thrower, ErrorKind::kInvalidRequest, "enough of it");
    EXPECT_EQ(calls, at);
    thrower.expect_prefix_of(expected);
    for (const Told* told : {&before, &behind}) {
      expect_end(*told, RequestEnd::kDone);
      EXPECT_EQ(told->tokens, expected.tokens);
      EXPECT_EQ(told->log_probs, expected.log_probs);
    }
    expect_idle(loop, 3, 3 * kContext / kPage);
  }
}

TEST_F(Faults, WhatIsNoErrorOfOursIsToldAsOne) {
  auto loop = this->loop(options());
  Told told;
  loop.submit(telling(request(10, 30), told, []() -> bool { throw std::runtime_error("mine"); }));
  run(loop);
  expect_failed(told, ErrorKind::kInternal, "who was told of tokens: mine");
}

TEST_F(Faults, ProgressThatThrowsEndsItsOwnRequestAlone) {
  auto loop = this->loop(options());
  Told told, other;
  Request throws = telling(request(3 * kChunk, 5), told);
  throws.on_progress = [](const PromptProgress& read) {
    if (read.share > 0.5) throw std::runtime_error("stop reading");
  };
  loop.submit(std::move(throws));
  loop.submit(telling(request(3 * kChunk, 5), other));
  run(loop);
  expect_failed(told, ErrorKind::kInternal, "stop reading");
  expect_end(other, RequestEnd::kDone);
  EXPECT_EQ(other.tokens, alone(request(3 * kChunk, 5)).tokens);
}

// Two that end in one round, and one that ends with its first token.
TEST_F(Faults, EndsThatThrowHoldUpNothing) {
  for (const int predict : {1, 7}) {
    auto loop = this->loop(options());
    Told told[3];
    for (Told& one : told) {
      Request wanted = telling(request(40, predict), one);
      wanted.on_end = [&one](const Request::Ended& ended) {
        one.ends.push_back(ended);
        throw std::runtime_error("no news please");
      };
      loop.submit(std::move(wanted));
    }
    run(loop);
    for (const Told& one : told) {
      expect_end(one, RequestEnd::kDone);
      EXPECT_EQ(std::ssize(one.tokens), predict);
    }
    expect_idle(loop, 3, 3 * kContext / kPage);
  }
}

TEST_F(Faults, AnEndThatThrowsLeavesWhatElseIsInTheInbox) {
  auto loop = this->loop(options());
  Told gone, other, late;
  Request wanted = telling(request(40, 30), gone);
  wanted.on_end = [&gone](const Request::Ended& ended) {
    gone.ends.push_back(ended);
    throw std::runtime_error("no news please");
  };
  const RequestId first = loop.submit(std::move(wanted));
  const RequestId second = loop.submit(telling(request(40, 30), other));
  loop.step();
  loop.cancel(first);
  loop.cancel(second);
  loop.submit(telling(request(40, 30), late));
  run(loop);
  expect_end(gone, RequestEnd::kCancelled);
  expect_end(other, RequestEnd::kCancelled);
  expect_end(late, RequestEnd::kDone);
}

TEST_F(Faults, CallbacksMaySubmitAndCancel) {
  auto loop = this->loop(options());
  Told first, second, cancelled;
  RequestId victim = 0;
  loop.submit(telling(request(40, 10), first, [&, calls = 0]() mutable {
    if (++calls == 1) victim = loop.submit(telling(request(40, 300), cancelled));
    if (calls == 4) loop.cancel(victim);
    if (calls == 4) loop.submit(telling(request(40, 10), second));
    return true;
  }));
  run(loop);
  for (const Told* told : {&first, &second}) {
    expect_end(*told, RequestEnd::kDone);
    EXPECT_EQ(told->tokens, alone(request(40, 10)).tokens);
  }
  expect_end(cancelled, RequestEnd::kCancelled);
}

// --- what is refused at once ---------------------------------------------------------------------

TEST_F(Faults, WhatCanNeverBeIsRefusedWithItsField) {
  RequestLoopOptions few = options();
  few.pages = 4;
  few.max_waiting = 2;
  auto loop = this->loop(few);
  int ends = 0;
  const auto refused = [&](ErrorKind kind, std::optional<Field> field, Request wanted) {
    wanted.on_end = [&](const Request::Ended&) { ++ends; };
    try {
      loop.submit(std::move(wanted));
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_EQ(error.field(), field) << error.what();
    }
  };
  refused(ErrorKind::kInvalidRequest, field::kContext, request(kContext, 2));
  refused(ErrorKind::kInvalidRequest, field::kPageMemory, request(6 * kPage, 2));
  refused(ErrorKind::kInvalidRequest, field::kPredict, request(10, 0));
  refused(ErrorKind::kInvalidRequest, std::nullopt, request(0, 5));
  Request wanted = request(10, 5);
  wanted.prompt[3] = 1'000'000;
  refused(ErrorKind::kInvalidRequest, std::nullopt, wanted);
  wanted = request(10, 5);
  wanted.draft_len = 17;
  refused(ErrorKind::kInvalidRequest, field::kDraftLen, wanted);
  wanted = request(10, 5);
  wanted.forced = {5, 2};
  refused(ErrorKind::kInvalidRequest, field::kPlan, wanted);
  wanted.forced = {0, 40};
  refused(ErrorKind::kInvalidRequest, field::kDraftLen, wanted);
  wanted = request(10, 5);
  wanted.sampling.top_p = 7;
  refused(ErrorKind::kInvalidRequest, field::kTopP, wanted);
  Told told[2];
  for (Told& one : told) loop.submit(telling(request(10, 5), one));
  refused(ErrorKind::kOutOfMemory, std::nullopt, request(10, 5));
  loop.step();  // both are admitted
  loop.submit(request(10, 5));
  run(loop);
  for (const Told& one : told) expect_end(one, RequestEnd::kDone);
  EXPECT_EQ(ends, 0);
}

TEST_F(Faults, OneOwnerCannotFillTheQueue) {
  RequestLoopOptions few = options();
  few.max_waiting = 8;
  auto loop = this->loop(few);
  const auto submit = [&](OwnerId owner) {
    Request wanted = request(10, 5);
    wanted.owner = owner;
    return loop.submit(std::move(wanted));
  };
  const auto refused = [&](OwnerId owner) {
    expect_error(ErrorKind::kOutOfMemory, {"of one owner wait"}, [&] { submit(owner); });
  };
  for (int i = 0; i < 6; ++i) submit(1);
  refused(1);
  submit(2);
  refused(1);
  submit(3);
  expect_error(ErrorKind::kOutOfMemory, {"8 requests wait"}, [&] { submit(4); });
  run(loop);
  for (int i = 0; i < 6; ++i) submit(1);  // their places are free again
  run(loop);
}

TEST_F(Faults, ALoopHasNoMoreSequencesThanADraftPassHasRows) {
  for (const int sequences : {0, RequestLoopOptions::kMostSequences + 1}) {
    expect_error(ErrorKind::kInvalidRequest, {"sequences at once", "1 to 1024"},
                 [&] { this->loop(options(sequences)); });
  }
}

// --- pauses --------------------------------------------------------------------------------------

TEST_F(Faults, WishesTakeNoMoreRoomThanRequests) {
  auto loop = this->loop(options());
  Told gone, told;
  const RequestId ended = loop.submit(telling(request(40, 5), gone));
  run(loop);
  const RequestId id = loop.submit(telling(request(40, 5), told));
  refuse_one_in = 1;
  for (int i = 0; i < 100'000; ++i) {
    for (const RequestId of : {ended, id}) {
      loop.pause(of);
      loop.resume(of);
    }
  }
  loop.cancel(ended);
  refuse_one_in = 0;
  run(loop);
  expect_end(gone, RequestEnd::kDone);
  expect_end(told, RequestEnd::kDone);
  loop.resume(id);
  EXPECT_FALSE(loop.step());
}

TEST_F(Faults, OfTwoWishesTheLastCountsAndACancel) {
  auto loop = this->loop(options());
  Told paused, cancelled;
  const RequestId first = loop.submit(telling(request(40, 5), paused));
  const RequestId second = loop.submit(telling(request(40, 5), cancelled));
  loop.resume(first);
  loop.pause(first);
  loop.cancel(second);
  loop.resume(second);
  run(loop);
  EXPECT_EQ(paused.tokens.size() + paused.ends.size(), 0u);
  expect_end(cancelled, RequestEnd::kCancelled);
  loop.resume(first);
  run(loop);
  expect_end(paused, RequestEnd::kDone);
}

TEST_F(Faults, WhoIsPausedGivesItsPlaceToWhoComes) {
  for (const int sequences : {1, 2}) {  // slots are short; then pages
    RequestLoopOptions few = options(sequences);
    few.pages = 8;
    auto loop = this->loop(few);
    Told paused, other;
    const RequestId id = loop.submit(telling(request(5 * kPage, 40), paused));
    while (paused.tokens.size() < 10) ASSERT_TRUE(loop.step());
    loop.pause(id);
    loop.step();
    EXPECT_FALSE(loop.step());
    loop.submit(telling(request(5 * kPage, 40, 17), other));
    run(loop);
    expect_end(other, RequestEnd::kDone);
    EXPECT_EQ(other.tokens, alone(request(5 * kPage, 40, 17)).tokens);
    EXPECT_LT(paused.tokens.size(), 40u);
    loop.resume(id);
    run(loop);
    expect_end(paused, RequestEnd::kDone);
    EXPECT_EQ(paused.tokens, alone(request(5 * kPage, 40)).tokens);
  }
}

// Paused while its last chunk is in flight. Returns false where a slow machine read on too far.
bool expect_told_late(RequestLoop& loop, Request wanted, Told& told, bool preempted) {
  Told beside;
  double read = 0;
  // Beside one that decodes, a step reads a slice or two.
  const RequestId other = loop.submit(Faults::telling(Faults::request(10, 300), beside));
  while (beside.tokens.size() < 5) loop.step();
  wanted.on_progress = [&](const PromptProgress& now) { read = std::max(read, now.share); };
  const RequestId id = loop.submit(std::move(wanted));
  while (read < 0.7) loop.step();
  if (read == 1) return false;
  loop.pause(id);
  Faults::run(loop);
  EXPECT_LT(read, 1);
  EXPECT_EQ(told.tokens.size() + told.ends.size(), 0u);
  EXPECT_EQ(preempted && loop.preempt(id), preempted);
  loop.resume(id);
  loop.step();
  EXPECT_EQ(read, 1);
  Faults::run(loop);
  loop.cancel(other);
  return true;
}

TEST_F(Faults, APausedRequestIsToldWhatCameWhenItGoesOn) {
  for (const bool preempted : {false, true}) {
    for (const int predict : {1, 20}) {
      const Told expected = alone(request(3 * kChunk, predict));
      bool done = false;
      for (int tries = 0; !done && tries < 100; ++tries) {
        auto loop = this->loop(options());
        Told told;
        done = expect_told_late(loop, telling(request(3 * kChunk, predict), told), told, preempted);
        if (!done) continue;
        expect_end(told, RequestEnd::kDone);
        EXPECT_EQ(told.tokens, expected.tokens);
        EXPECT_EQ(told.log_probs, expected.log_probs);
      }
      EXPECT_TRUE(done);
    }
  }
}

TEST_F(Faults, ProgressThatThrowsWhenARequestGoesOnEndsIt) {
  auto loop = this->loop(options());
  Told told;
  Request wanted = telling(request(6 * kChunk, 5), told);
  RequestId id = 0;
  int calls = 0;
  wanted.on_progress = [&](const PromptProgress&) {
    if (++calls == 1) loop.pause(id);
    if (calls == 2) throw std::runtime_error("stop reading");
  };
  id = loop.submit(std::move(wanted));
  run(loop);
  EXPECT_EQ(calls, 1);
  loop.resume(id);
  run(loop);
  EXPECT_EQ(calls, 2);
  expect_failed(told, ErrorKind::kInternal, "how far a prompt is read: stop reading");
  expect_idle(loop, 3, 3 * kContext / kPage);
}

TEST_F(Faults, WhatItReadItselfBeforeAPreemptionIsNotCached) {
  auto loop = this->loop(options());
  Told first, second;
  const RequestId id = loop.submit(telling(request(3 * kChunk + 7, 20), first));
  while (first.tokens.size() < 5) loop.step();
  EXPECT_TRUE(loop.preempt(id));
  run(loop);
  EXPECT_EQ(first.ends.at(0).cached_tokens, 0);
  EXPECT_EQ(first.tokens, alone(request(3 * kChunk + 7, 20)).tokens);
  loop.submit(telling(request(3 * kChunk + 7, 20), second));
  run(loop);
  EXPECT_EQ(second.ends.at(0).cached_tokens, 2 * kChunk);
}

TEST_F(Faults, WhoWaitsForAPlaceHitsNoPrefix) {
  RequestLoopOptions few = options(1);
  auto loop = this->loop(few);
  Told first, second;
  loop.submit(telling(request(3 * kChunk + 7, 60), first));
  loop.submit(telling(request(3 * kChunk + 7, 60), second));
  run(loop);
  // The third is found, too, and read for the ring.
  EXPECT_EQ(loop.statistics().prefixes.hit_tokens, 3u * kChunk);
  EXPECT_EQ(second.ends.at(0).cached_tokens, 2 * kChunk);
}

// --- memory --------------------------------------------------------------------------------------

// A request that was swapped out, and whose pages cannot be had when it comes back.
TEST_F(Faults, WhatDoesNotComeBackFromTheHostIsReadAgain) {
  RequestLoopOptions with_host = options();
  with_host.host_bytes = 100 * model_.pool.page_bytes();
  auto loop = this->loop(with_host);
  Told told;
  const RequestId id = loop.submit(telling(request(3 * kChunk + 8, 80), told));
  while (told.tokens.size() < 70) loop.step();
  loop.pause(id);
  loop.step();
  EXPECT_TRUE(loop.preempt(id));
  EXPECT_EQ(loop.statistics().swaps, 1u);
  // Others take what is free of the pages, so that the pool asks for memory.
  Told others[2];
  for (Told& other : others) loop.submit(telling(request(6 * kChunk, 40, 20), other));
  for (int i = 0; i < 20; ++i) loop.step();
  loop.resume(id);
  refuse_next = 1;
  loop.step();
  EXPECT_EQ(refuse_next, 0);
  EXPECT_EQ(loop.statistics().replays, 1u);
  EXPECT_EQ(loop.statistics().pages_swapped_in, 0u);
  run(loop);
  expect_end(told, RequestEnd::kDone);
  EXPECT_EQ(told.tokens, alone(request(3 * kChunk + 8, 80)).tokens);
  EXPECT_EQ(told.log_probs, alone(request(3 * kChunk + 8, 80)).log_probs);
}

TEST_F(Faults, MemoryThatIsRefusedInAPromptEndsThatRequestAlone) {
  auto loop = this->loop(options());
  Told told, other;
  loop.submit(telling(request(6 * kChunk, 40), told));
  loop.step();
  refuse_one_in = 1;
  for (int i = 0; i < 50 && told.ends.empty(); ++i) loop.step();
  refuse_one_in = 0;
  if (!told.ends.empty()) expect_failed(told, ErrorKind::kOutOfMemory, "");
  loop.submit(telling(request(40, 20), other));
  run(loop);
  expect_end(other, RequestEnd::kDone);
  EXPECT_EQ(other.tokens, alone(request(40, 20)).tokens);
}

// In rounds of so many that lists of them, when they grow, are no small allocations.
TEST_F(Faults, MemoryThatIsRefusedOnceEndsOneRequestAtMost) {
  constexpr int kMany = 70, kLists = 64;
  Request wanted = request(10, 400);
  wanted.draft_len = std::nullopt;
  const Told expected = alone(wanted);
  RequestLoopOptions many = options(kMany);
  many.timing_seconds = 0;
  for (int given = 0; given < 12; ++given) {
    auto loop = this->loop(many);
    std::vector<Told> told(kMany);
    std::vector<RequestId> ids;
    for (Told& one : told) ids.push_back(loop.submit(telling(wanted, one)));
    while (told[kLists - 1].tokens.empty()) ASSERT_TRUE(loop.step());
    refuse_after = given;
    refuse_next = 1;
    for (int i = 0; i < 8 && refuse_next > 0; ++i) EXPECT_NO_THROW(loop.step()) << given;
    refuse_next = 0;
    for (const RequestId id : ids) loop.cancel(id);
    run(loop);
    int failed = 0;
    for (const Told& one : told) {
      one.expect_prefix_of(expected);
      ASSERT_EQ(one.ends.size(), 1u);
      failed += one.ends[0].end == RequestEnd::kFailed;
    }
    EXPECT_LE(failed, 1) << given;
    expect_idle(loop, kMany, kMany * kContext / kPage);
  }
}

TEST_F(Faults, ALoopThatEndsWithoutMemoryTellsAll) {
  constexpr int kMany = 700;
  auto loop = this->loop(options());
  std::vector<Told> told(kMany);
  for (Told& one : told) loop.submit(telling(request(10, 12), one));
  loop.stop();
  refuse_one_in = 1;
  EXPECT_NO_THROW(loop.run());
  refuse_one_in = 0;
  for (const Told& one : told) {
    ASSERT_EQ(one.ends.size(), 1u);
    const Request::Ended& end = one.ends[0];
    EXPECT_EQ(end.error.has_value(), end.end == RequestEnd::kFailed);
  }
}

TEST_F(Faults, ALoopWithNothingToDoSleepsAndIsWokenAtOnce) {
  auto loop = this->loop(options());
  std::thread runner([&] { loop.run(); });
  const auto cpu_seconds = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
  };
  std::atomic<bool> began = false;
  Request wanted = request(40, 300);
  wanted.on_tokens = [&](const Step&) { return began = true; };
  const RequestId id = loop.submit(wanted);
  while (!began) std::this_thread::yield();
  loop.pause(id);  // it stays, and there is nothing to do
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.005);
  loop.stop();
  runner.join();
}

}  // namespace
}  // namespace quantspec::testing
