#include "scheduler/fair_queue.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace quantspec {
namespace {

constexpr double kAgeing = 30;

std::vector<RequestId> order(FairQueue queue, double now) {
  std::vector<RequestId> ids;
  while (const auto id = queue.front(now)) {
    ids.push_back(*id);
    queue.erase(*id);
  }
  return ids;
}

TEST(FairQueue, OrdersByClassThenCounterThenSizeThenNumber) {
  FairQueue queue(kAgeing);
  queue.push({.id = 1, .owner = 1, .priority = 0, .number = 1}, 50);
  queue.push({.id = 2, .owner = 2, .priority = 0, .number = 2}, 40);
  queue.push({.id = 3, .owner = 1, .priority = 1, .number = 3}, 50);
  queue.push({.id = 4, .owner = 2, .priority = 0, .size = -1, .number = 4}, 40);
  queue.push({.id = 5, .owner = 3, .priority = 0, .resumes = true, .number = 5}, 90);
  queue.push({.id = 6, .owner = 2, .priority = 0, .number = 6}, 40);
  EXPECT_EQ(order(queue, 0), (std::vector<RequestId>{3, 5, 4, 2, 6, 1}));
  queue.set_counter(2, 60);
  EXPECT_EQ(order(queue, 0), (std::vector<RequestId>{3, 5, 1, 4, 2, 6}));
}

TEST(FairQueue, GoesAClassUpForEveryPeriod) {
  FairQueue queue(kAgeing);
  queue.push({.id = 1, .owner = 1, .priority = 0, .arrival = 0, .number = 1}, 9);
  queue.push({.id = 2, .owner = 2, .priority = 2, .arrival = 0, .number = 2}, 0);
  queue.push({.id = 3, .owner = 3, .priority = 2, .arrival = 59, .number = 3}, 0);
  EXPECT_EQ(queue.front(29.9), 2u);
  queue.erase(2);
  EXPECT_EQ(queue.front(59.9), 3u);  // class 2 against 1
  EXPECT_EQ(queue.class_of(1), 1);
  EXPECT_EQ(queue.front(60), 3u);    // 2 and 2: the counter decides
  EXPECT_EQ(queue.front(89.5), 3u);  // 3 and 2 would be 90 and later
  EXPECT_EQ(queue.front(90), 3u);    // 3 and 3
  queue.push({.id = 4, .owner = 4, .priority = 2, .arrival = 30, .number = 4}, 0);
  queue.erase(3);
  EXPECT_EQ(queue.front(1e6), 4u);  // two classes ahead, and one behind by age
  queue.erase(4);
  queue.push({.id = 5, .owner = 4, .priority = 2, .arrival = 1e6, .number = 5}, 0);
  EXPECT_EQ(queue.front(1e6), 1u);
}

// Against the definition, computed anew at every step.
RC_GTEST_PROP(FairQueueProperty, FrontIsTheLeastByTheDefinition, ()) {
  using Operation = std::tuple<int, int, int>;
  const auto below = [](int end) { return rc::gen::inRange(0, end); };
  const auto operations = *rc::gen::resize(400, rc::gen::container<std::vector<Operation>>(
                                                    rc::gen::tuple(below(8), below(5), below(60))));
  FairQueue queue(kAgeing);
  std::vector<FairQueue::Entry> entries;
  std::vector<double> counters(5);
  double now = 0;
  RequestId next = 0;
  for (const auto& [kind, owner, number] : operations) {
    if (kind < 3) {
      entries.push_back({.id = ++next,
                         .owner = static_cast<OwnerId>(owner),
                         .priority = number % 3,
                         .arrival = now - number / 20,
                         .resumes = number % 7 == 0,
                         .size = number % 4,
                         .number = next});
      queue.push(entries.back(), counters[owner]);
    } else if (kind == 3 && !entries.empty()) {
      const auto entry = entries.begin() + number % entries.size();
      RC_ASSERT(queue.erase(entry->id));
      entries.erase(entry);
    } else if (kind == 4) {
      queue.set_counter(owner, counters[owner] += number - 10);
    } else if (kind == 5) {
      now += number;
    }
    const auto key = [&](const FairQueue::Entry& entry) {
      const auto age = static_cast<std::int64_t>(std::floor((now - entry.arrival) / kAgeing));
      return std::tuple(-(entry.priority + age), !entry.resumes, counters[entry.owner]);
    };
    const auto front = queue.front(now);
    RC_ASSERT(front.has_value() == !entries.empty());
    RC_ASSERT(queue.size() == entries.size());
    if (!front) continue;
    const auto is_front = [&](const auto& entry) { return entry.id == *front; };
    const auto chosen = std::find_if(entries.begin(), entries.end(), is_front);
    for (const auto& entry : entries) {
      RC_ASSERT(key(*chosen) <= key(entry));
      if (entry.owner == chosen->owner && key(entry) == key(*chosen)) {
        RC_ASSERT(std::tuple(chosen->size, chosen->number) <= std::tuple(entry.size, entry.number));
      }
    }
    RC_ASSERT(queue.class_of(*front) == -std::get<0>(key(*chosen)));
  }
}

}  // namespace
}  // namespace quantspec
