// Who is next: strict classes with ageing; within a class the owner who got least; within an
// owner's class whoever has the least `order`, then the least `number`. A request's class is its
// priority, and one more after every `ageing` seconds for which it has waited while somebody in the
// queue has a priority above its class. Age does not count within the highest class: there it would
// put those who ask for much before those who ask for little, just when there is more to do than
// can be done.
//
// So a request is in the highest class after `ageing` seconds for every class between. There it
// waits until its owner's turn comes, which Owners sees to.
//
// With n requests beside each other every operation takes O(log n), but for owners whose requests
// are in k classes, whose counter takes O(k log n) to change. Where memory is refused, nothing has
// changed; erase() and set_counter() take none. Not thread-safe. Deterministic.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "scheduler/request.h"

namespace quantspec {

class FairQueue {
 public:
  // ageing: seconds, > 0.
  explicit FairQueue(double ageing) : ageing_(ageing) {}

  struct Entry {
    RequestId id;
    OwnerId owner;
    int priority;
    double arrival;  // seconds
    // Before all of its class that do not: a request that was preempted has been chosen before.
    bool resumes = false;
    double order = 0;
    std::uint64_t number = 0;  // of no other entry
  };

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  bool contains(RequestId id) const { return entries_.contains(id); }

  // counter: what the entry's owner got; the same for all of its entries. REQUIRES: the id is new.
  void push(const Entry& entry, double counter);
  // Whether it was there.
  bool erase(RequestId id);
  void set_counter(OwnerId owner, double counter);

  std::optional<RequestId> front(double now);
  // As of the last front(). REQUIRES: contains(id).
  std::int64_t class_of(RequestId id) const;

 private:
  // Greater goes first: 2 * class, and one more where entries resume.
  using Level = std::int64_t;
  struct Place {
    double order;
    std::uint64_t number;
    RequestId id;
    auto operator<=>(const Place&) const = default;
  };
  struct Waiting {
    Entry entry;
    std::int64_t at_class;
    double due;  // when the next period of ageing ends
    Level level() const { return 2 * at_class + (entry.resumes ? 1 : 0); }
    Place place() const { return {entry.order, entry.number, entry.id}; }
  };
  // An owner's entries of one level.
  struct Bucket {
    double counter;
    std::set<Place> places;
  };
  using Buckets = std::map<std::pair<OwnerId, Level>, Bucket>;
  struct Key {  // of a bucket in order_
    Level minus_level;
    double counter;
    Place first;
    OwnerId owner;
    auto operator<=>(const Key&) const = default;
  };

  static Key key_of(const Buckets::value_type& bucket);
  void reorder(const Key& before, const Buckets::value_type& bucket);
  void insert(const Waiting& waiting, double counter);
  void remove(const Waiting& waiting);
  void age(double now);

  double ageing_;
  std::unordered_map<RequestId, Waiting> entries_;
  Buckets buckets_;                             // none is empty
  std::set<Key> order_;                         // of the buckets
  std::set<std::pair<double, RequestId>> due_;  // of the entries
  std::map<int, std::size_t> priorities_;       // how many entries have them
};

}  // namespace quantspec
