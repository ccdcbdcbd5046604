#include "scheduler/fair_queue.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>
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

TEST(FairQueue, OrdersByClassThenCounterThenOrderThenNumber) {
  FairQueue queue(kAgeing);
  queue.push({.id = 1, .owner = 1, .priority = 0, .number = 1}, 50);
  queue.push({.id = 2, .owner = 2, .priority = 0, .number = 2}, 40);
  queue.push({.id = 3, .owner = 1, .priority = 1, .number = 3}, 50);
  queue.push({.id = 4, .owner = 2, .priority = 0, .order = -1, .number = 4}, 40);
  queue.push({.id = 5, .owner = 3, .priority = 0, .resumes = true, .number = 5}, 90);
  queue.push({.id = 6, .owner = 2, .priority = 0, .number = 6}, 40);
  EXPECT_EQ(order(queue, 0), (std::vector<RequestId>{3, 5, 4, 2, 6, 1}));
  queue.set_counter(2, 60);
  EXPECT_EQ(order(queue, 0), (std::vector<RequestId>{3, 5, 1, 4, 2, 6}));
}

TEST(FairQueue, GoesAClassUpForEveryPeriodBelowAHigherPriority) {
  FairQueue queue(kAgeing);
  queue.push({.id = 1, .owner = 1, .priority = 0, .arrival = 0, .number = 1}, 9);
  EXPECT_EQ(queue.front(45), 1u);
  EXPECT_EQ(queue.class_of(1), 0);  // there is none to wait for
  queue.push({.id = 2, .owner = 2, .priority = 2, .arrival = 45, .number = 2}, 0);
  EXPECT_EQ(queue.front(59.9), 2u);
  EXPECT_EQ(queue.class_of(1), 0);
  EXPECT_EQ(queue.front(60), 2u);
  EXPECT_EQ(queue.class_of(1), 1);
  EXPECT_EQ(queue.front(1000), 2u);  // 2 and 2: the counter decides
  EXPECT_EQ(queue.class_of(1), 2);
  EXPECT_EQ(queue.class_of(2), 2);
  queue.set_counter(2, 10);
  EXPECT_EQ(queue.front(1000), 1u);
}

TEST(FairQueue, AgeDoesNotCountInTheHighestClass) {
  FairQueue queue(kAgeing);
  for (RequestId id = 1; id <= 50; ++id) {
    queue.push({.id = id, .owner = 1, .priority = 1, .arrival = 0, .number = id}, 100);
  }
  queue.push({.id = 51, .owner = 2, .priority = 1, .arrival = 1000, .number = 51}, 99);
  EXPECT_EQ(queue.front(1000), 51u);
}

// Against the definition, computed anew at every step.
class Model {
 public:
  struct Entry : FairQueue::Entry {
    std::int64_t at_class;
    double due;
  };
  void push(const FairQueue::Entry& entry) {
    entries.push_back({entry, entry.priority, entry.arrival + kAgeing});
  }
  auto key(const Entry& entry) const {
    return std::tuple(-entry.at_class, !entry.resumes, counters[entry.owner]);
  }
  const Entry* front(double now) {
    int highest = std::numeric_limits<int>::min();
    for (const Entry& entry : entries) highest = std::max(highest, entry.priority);
    for (Entry& entry : entries) {
      for (; entry.due <= now; entry.due += kAgeing) entry.at_class += entry.at_class < highest;
    }
    // Owners of equal counters are told apart by their first entries.
    const auto before = [&](const Entry& a, const Entry& b) {
      return std::tuple(key(a), a.order, a.number) < std::tuple(key(b), b.order, b.number);
    };
    const auto least = std::min_element(entries.begin(), entries.end(), before);
    return least == entries.end() ? nullptr : &*least;
  }

  std::vector<Entry> entries;
  std::vector<double> counters = std::vector<double>(5);
};

RC_GTEST_PROP(FairQueueProperty, FrontIsTheLeastByTheDefinition, ()) {
  using Operation = std::tuple<int, int, int>;
  const auto below = [](int end) { return rc::gen::inRange(0, end); };
  constexpr int kMost = 400;
  const auto operations = *rc::gen::resize(
      kMost,
      rc::gen::container<std::vector<Operation>>(rc::gen::tuple(below(8), below(5), below(60))));
  FairQueue queue(kAgeing);
  Model model;
  double now = 0;
  RequestId next = 0;
  for (const auto& [kind, owner, number] : operations) {
    if (kind < 3) {
      const FairQueue::Entry entry{.id = ++next,
                                   .owner = static_cast<OwnerId>(owner),
                                   .priority = number % 3,
                                   .arrival = now - number / 20,
                                   .resumes = number % 7 == 0,
                                   .order = 1.0 * (number % 4),
                                   .number = next};
      model.push(entry);
      queue.push(entry, model.counters[owner]);
    } else if (kind == 3 && !model.entries.empty()) {
      const auto entry = model.entries.begin() + number % model.entries.size();
      RC_ASSERT(queue.erase(entry->id));
      RC_ASSERT(!queue.erase(entry->id));
      model.entries.erase(entry);
    } else if (kind == 4) {
      queue.set_counter(owner, model.counters[owner] += number - 10);
    } else if (kind == 5) {
      now += number;
    }
    const Model::Entry* first = model.front(now);
    const auto front = queue.front(now);
    RC_ASSERT(queue.size() == model.entries.size());
    RC_ASSERT(front.has_value() == (first != nullptr));
    if (!front) continue;
    RC_ASSERT(*front == first->id);
    RC_ASSERT(queue.class_of(*front) == first->at_class);
  }
}

}  // namespace
}  // namespace quantspec
