#include "scheduler/owners.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace quantspec {

void Owners::add(OwnerId id) {
  const auto known = owners_.find(id);
  if (known != owners_.end()) {
    Owner& owner = known->second;
    if (owner.live++ == 0) owner.unused.splice(owner.unused.end(), idle_, owner.idle);
    return;
  }
  Owner owner{.live = 1, .unused = {id}};
  owner.idle = owner.unused.begin();
  owners_.emplace(id, std::move(owner));
}

void Owners::remove(OwnerId id) {
  Owner& owner = owners_.at(id);
  check(owner.live > 0, "an owner has fewer requests than ended");
  if (--owner.live > 0) return;
  idle_.splice(idle_.end(), owner.unused);
  if (idle_.size() <= kMostIdle) return;
  owners_.erase(idle_.front());
  idle_.pop_front();
}

double Owners::enter(OwnerId id) {
  Owner& owner = owners_.at(id);
  if (owner.competing == 0) {
    if (!competing_.empty()) level_ = std::max(level_, competing_.begin()->first);
    const double counter = std::max(owner.counter, level_);
    competing_.emplace(counter, id);
    owner.counter = counter;
  }
  ++owner.competing;
  ++num_competing_;
  return owner.counter;
}

void Owners::leave(OwnerId id) {
  Owner& owner = owners_.at(id);
  check(owner.competing > 0, "an owner competes with no request");
  --num_competing_;
  if (--owner.competing > 0) return;
  competing_.erase({owner.counter, id});
  if (competing_.empty()) level_ = std::max(level_, owner.counter);
}

double Owners::charge(OwnerId id, double cost) {
  Owner& owner = owners_.at(id);
  if (owner.competing > 0) {
    auto node = competing_.extract({owner.counter, id});
    node.value().first += cost;
    competing_.insert(std::move(node));
    level_ += std::max(0.0, cost) / static_cast<double>(competing_.size());
  }
  return owner.counter += cost;
}

void Owners::observe_output(OwnerId owner, int tokens) {
  owners_.at(owner).outputs.observe(tokens);
  outputs_.observe(tokens);
}

int Owners::expected_output(OwnerId owner, int most, double factor) const {
  const OutputStatistics& own = owners_.at(owner).outputs;
  const OutputStatistics& outputs = own.empty() ? outputs_ : own;
  if (outputs.empty()) return most;
  return static_cast<int>(std::clamp(std::ceil(factor * outputs.upper()), 1.0, 1.0 * most));
}

}  // namespace quantspec
