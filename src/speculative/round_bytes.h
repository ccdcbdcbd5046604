// Bytes that the passes of rounds read, as DraftLengths wants them: the weights once, the cache by
// context. Quick to ask round by round; allocates when it is made and by options(). Not changed
// by use, thus thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "speculative/draft_lengths.h"

namespace quantspec {

class RoundBytes {
 public:
  // target: the plan that verifies. plans: by which to draft.
  RoundBytes(const Model& model, const KvShape& shape, KvStore store, const Plan& target,
             std::span<const Plan> plans);

  std::size_t num_plans() const { return names_.size(); }
  int lookup() const { return lookup_; }  // DraftLengths::Options::lookup
  // The plans, and what their passes read besides the cache.
  DraftLengths::Options options(std::optional<int> fixed_len) const;
  // K and V of a sequence of so many tokens: by the verification, and by a draft pass of every
  // plan; negative for those that a sequence of so many does without (Plan::from_tokens).
  // REQUIRES: by_plan.size() is the number of plans.
  double verify(int context) const { return target_kv_.after(context); }
  void draft(int context, std::span<double> by_plan) const;

 private:
  double target_weights_;
  PlanKvBytes target_kv_;
  std::vector<std::string> names_;
  int lookup_ = -1;
  std::vector<double> plan_weights_;
  std::vector<PlanKvBytes> plan_kv_;
  std::vector<char> by_mass_;      // by plan
  std::vector<int> from_tokens_;   // likewise
  std::vector<float> acceptance_;  // likewise
};

}  // namespace quantspec
