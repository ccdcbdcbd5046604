// A Scheduler that is refused memory: what it was told is taken whole or not at all.
#include <gtest/gtest.h>

#include <new>

#include "scheduler/scheduler.h"
#include "tests/faults/refusals.h"

namespace quantspec::testing {
namespace {

// Of requests, of owners and of the queue, in turn.
TEST(SchedulerFaults, WhoseSubmissionIsRefusedMemoryIsNotKnown) {
  for (const int given : {0, 1, 2}) {
    Scheduler scheduler(
        {.page_tokens = 32, .chunk_tokens = 64, .total_pages = 100, .context_tokens = 1000});
    int refusals = 0;
    refuse_after = given;
    refuse_next = 1;
    for (RequestId id = 1; id <= 1000; ++id) {
      const RequestInfo info{.id = id, .owner = id, .prompt_tokens = 10, .most_new_tokens = 5};
      try {
        scheduler.submit(info);
      } catch (const std::bad_alloc&) {
        ++refusals;
        EXPECT_FALSE(scheduler.cancel(id));
        scheduler.check_integrity();
        scheduler.submit(info);
      }
    }
    EXPECT_EQ(refusals, 1);
    EXPECT_EQ(scheduler.statistics().waiting, 1000u);
    scheduler.check_integrity();
    for (RequestId id = 1; id <= 1000; ++id) EXPECT_TRUE(scheduler.cancel(id));
    scheduler.check_integrity();
  }
}

}  // namespace
}  // namespace quantspec::testing
