// What a round of a batch costs, one model for the engine:
//
//     round = verification + its draft passes, one for every depth that a sequence drafts to
//
// The times of verification and of every plan's draft passes are learned apart (pass_time.h), from
// the totals of rounds as they run. Until a plan is measured, its passes are taken to read bytes at
// the target's rate. Pure but for what it learns: no clock. Not thread-safe. Times are in seconds.
#pragma once

#include <span>
#include <vector>

#include "speculative/pass_time.h"

namespace quantspec {

// A pass that was timed with care, over and over.
struct TimedPass {
  static constexpr int kTarget = -1;

  int plan = kTarget;  // of a draft pass; kTarget: a verification, with all in a round but drafts
  PassLoad load = {};
  double seconds = 0;
};

class CostModel {
 public:
  // Bytes that a pass reads besides the cache (pass_bytes of no context): of the target, and of
  // every plan that may draft; 0: it has none. max_rows: of one pass, > 0; no round is to have
  // more.
  CostModel(double target_bytes, std::span<const double> plan_bytes, int max_rows);

  int num_plans() const { return static_cast<int>(plans_.size()); }
  const PassTime& target() const { return target_; }
  const PassTime& draft(int plan) const { return plans_[plan]; }

  // A round as it ran. drafts: its passes by depth, all by one plan, none if nothing was drafted.
  // verify_seconds: everything in the round but the drafts.
  void observe(int plan, std::span<const PassLoad> drafts, double draft_seconds,
               const PassLoad& verify, double verify_seconds);
  // What is known before rounds run.
  void set_prior(const TimedPass& pass);

 private:
  void share_rate();

  PassTime target_;
  std::vector<PassTime> plans_;
};

}  // namespace quantspec
