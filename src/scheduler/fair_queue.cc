#include "scheduler/fair_queue.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace quantspec {

FairQueue::Key FairQueue::key_of(const Buckets::value_type& bucket) {
  const auto& [owner, level] = bucket.first;
  return {-level, bucket.second.counter, *bucket.second.places.begin(), owner};
}

void FairQueue::insert(const Waiting& waiting, double counter) {
  const auto [bucket, is_new] = buckets_.try_emplace({waiting.entry.owner, waiting.level()});
  if (!is_new) order_.erase(key_of(*bucket));
  bucket->second.counter = counter;
  bucket->second.places.insert(waiting.place());
  order_.insert(key_of(*bucket));
}

double FairQueue::remove(const Waiting& waiting) {
  const auto bucket = buckets_.find({waiting.entry.owner, waiting.level()});
  const double counter = bucket->second.counter;
  order_.erase(key_of(*bucket));
  bucket->second.places.erase(waiting.place());
  if (bucket->second.places.empty()) {
    buckets_.erase(bucket);
  } else {
    order_.insert(key_of(*bucket));
  }
  return counter;
}

double FairQueue::due(const Waiting& waiting) const {
  return waiting.entry.arrival + static_cast<double>(waiting.aged + 1) * ageing_;
}

void FairQueue::push(const Entry& entry, double counter) {
  const auto [place, is_new] = entries_.try_emplace(entry.id, Waiting{entry});
  check(is_new, "a request is in the queue twice");
  insert(place->second, counter);
  promotions_.emplace(due(place->second), entry.id);
}

bool FairQueue::erase(RequestId id) {
  const auto place = entries_.find(id);
  if (place == entries_.end()) return false;
  remove(place->second);
  promotions_.erase({due(place->second), id});
  entries_.erase(place);
  return true;
}

void FairQueue::set_counter(OwnerId owner, double counter) {
  auto bucket = buckets_.lower_bound({owner, std::numeric_limits<Level>::min()});
  for (; bucket != buckets_.end() && bucket->first.first == owner; ++bucket) {
    if (bucket->second.counter == counter) continue;
    auto node = order_.extract(key_of(*bucket));
    bucket->second.counter = counter;
    node.value() = key_of(*bucket);
    order_.insert(std::move(node));
  }
}

void FairQueue::age(double now) {
  while (!promotions_.empty() && promotions_.begin()->first <= now) {
    Waiting& waiting = entries_.at(promotions_.begin()->second);
    promotions_.erase(promotions_.begin());
    const double counter = remove(waiting);
    const double periods = std::floor((now - waiting.entry.arrival) / ageing_);
    waiting.aged = std::max(waiting.aged + 1, static_cast<std::int64_t>(periods));
    insert(waiting, counter);
    promotions_.emplace(due(waiting), waiting.entry.id);
  }
}

std::optional<RequestId> FairQueue::front(double now) {
  age(now);
  if (order_.empty()) return std::nullopt;
  return order_.begin()->first.id;
}

std::int64_t FairQueue::class_of(RequestId id) const {
  const Waiting& waiting = entries_.at(id);
  return waiting.entry.priority + waiting.aged;
}

}  // namespace quantspec
