#include "scheduler/fair_queue.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace quantspec {

FairQueue::Key FairQueue::key_of(const Buckets::value_type& bucket) {
  const auto& [owner, level] = bucket.first;
  return {-level, bucket.second.counter, *bucket.second.places.begin(), owner};
}

// What stood there as `before` is another one by now.
void FairQueue::reorder(const Key& before, const Buckets::value_type& bucket) {
  auto node = order_.extract(before);
  node.value() = key_of(bucket);
  order_.insert(std::move(node));
}

void FairQueue::insert(const Waiting& waiting, double counter) {
  const auto [bucket, is_new] = buckets_.try_emplace({waiting.entry.owner, waiting.level()});
  Bucket& of = bucket->second;
  if (!is_new) {
    const Key before = key_of(*bucket);
    of.places.insert(waiting.place());
    of.counter = counter;
    return reorder(before, *bucket);
  }
  try {
    of.counter = counter;
    of.places.insert(waiting.place());
    order_.insert(key_of(*bucket));
  } catch (...) {
    buckets_.erase(bucket);
    throw;
  }
}

void FairQueue::remove(const Waiting& waiting) {
  const auto bucket = buckets_.find({waiting.entry.owner, waiting.level()});
  const Key before = key_of(*bucket);
  bucket->second.places.erase(waiting.place());
  if (!bucket->second.places.empty()) return reorder(before, *bucket);
  order_.erase(before);
  buckets_.erase(bucket);
}

void FairQueue::push(const Entry& entry, double counter) {
  const auto [place, is_new] = entries_.try_emplace(
      entry.id,
      Waiting{.entry = entry, .at_class = entry.priority, .due = entry.arrival + ageing_});
  check(is_new, "a request is in the queue twice");
  try {
    decltype(due_) due = {{place->second.due, entry.id}};
    decltype(priorities_) priority = {{entry.priority, 0}};
    insert(place->second, counter);
    due_.merge(due);
    priorities_.merge(priority);
  } catch (...) {
    entries_.erase(place);
    throw;
  }
  ++priorities_.at(entry.priority);
}

bool FairQueue::erase(RequestId id) {
  const auto place = entries_.find(id);
  if (place == entries_.end()) return false;
  remove(place->second);
  due_.erase({place->second.due, id});
  const auto priority = priorities_.find(place->second.entry.priority);
  if (--priority->second == 0) priorities_.erase(priority);
  entries_.erase(place);
  return true;
}

void FairQueue::set_counter(OwnerId owner, double counter) {
  auto bucket = buckets_.lower_bound({owner, std::numeric_limits<Level>::min()});
  for (; bucket != buckets_.end() && bucket->first.first == owner; ++bucket) {
    if (bucket->second.counter == counter) continue;
    const Key before = key_of(*bucket);
    bucket->second.counter = counter;
    reorder(before, *bucket);
  }
}

void FairQueue::age(double now) {
  while (!due_.empty() && due_.begin()->first <= now) {
    Waiting& waiting = entries_.at(due_.begin()->second);
    Waiting aged = waiting;
    const double periods = 1 + std::floor((now - waiting.due) / ageing_);
    aged.due += periods * ageing_;
    const std::int64_t above = priorities_.rbegin()->first - waiting.at_class;
    if (above > 0) {
      aged.at_class += periods < above ? static_cast<std::int64_t>(periods) : above;
      insert(aged, buckets_.at({waiting.entry.owner, waiting.level()}).counter);
      remove(waiting);
    }
    auto due = due_.extract(due_.begin());
    due.value().first = aged.due;
    due_.insert(std::move(due));
    waiting = aged;
  }
}

std::optional<RequestId> FairQueue::front(double now) {
  age(now);
  if (order_.empty()) return std::nullopt;
  return order_.begin()->first.id;
}

std::int64_t FairQueue::class_of(RequestId id) const { return entries_.at(id).at_class; }

}  // namespace quantspec
