// What every owner got, and how much its requests write: virtual token counters (VTC, Sheng et al.,
// OSDI 2024, arXiv:2401.00588, algorithm 2). An owner that has not competed for a while comes back
// with no less than the least of those that compete: idleness saves up no credit.
//
// VTC assumes that owners are few. An endless row of new ones, each as far as the least, would keep
// out who is ahead of it; so whoever comes also has no less than the mean of what those who compete
// got: `level_` rises with every token of theirs, shared among them. With k of them, a counter that
// is c above it is reached once they got c * k, and then all who come are behind it.
//
// Owners with live requests are known, and of the others those that were live last, kMostIdle of
// them; one that is forgotten comes back as a new one. Where memory is refused, nothing has
// changed; all but add() and enter() take none. Not thread-safe. Deterministic.
#pragma once

#include <cstddef>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>

#include "scheduler/forecast.h"
#include "scheduler/request.h"

namespace quantspec {

class Owners {
 public:
  static constexpr std::size_t kMostIdle = 1024;

  // A request is known from add() to remove().
  void add(OwnerId owner);
  void remove(OwnerId owner);
  // While a request waits for its admission or for its prompt, its owner competes. enter() may lift
  // the counter of one that did not; it returns the counter. REQUIRES: the owner has a live
  // request.
  double enter(OwnerId owner);
  void leave(OwnerId owner);

  double counter(OwnerId owner) const { return owners_.at(owner).counter; }  // weighed tokens
  // Returns the counter. What was charged in vain is given back as a negative cost.
  double charge(OwnerId owner, double cost);

  // A request of this owner wrote so many tokens.
  void observe_output(OwnerId owner, int tokens);
  // What it may be expected to write, at most `most`: by its owner's requests or, for a new owner,
  // by everybody's; `most` where nothing is known. factor: Caution's.
  int expected_output(OwnerId owner, int most, double factor) const;

  std::size_t size() const { return owners_.size(); }
  std::size_t num_competing() const { return num_competing_; }  // requests

 private:
  struct Owner {
    double counter = 0;
    int live = 0;
    int competing = 0;
    OutputStatistics outputs;
    std::list<OwnerId> unused;          // what it is in idle_ where live == 0
    std::list<OwnerId>::iterator idle;  // that
  };

  std::unordered_map<OwnerId, Owner> owners_;
  std::list<OwnerId> idle_;                         // the longest idle first
  std::set<std::pair<double, OwnerId>> competing_;  // by counter
  std::size_t num_competing_ = 0;
  double level_ = 0;          // where owners that come begin at least
  OutputStatistics outputs_;  // everybody's
};

}  // namespace quantspec
