#include "speculative/cost_model.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {

CostModel::CostModel(double target_bytes, std::span<const double> plan_bytes, int max_rows)
    : target_(target_bytes, max_rows) {
  plans_.reserve(plan_bytes.size());
  for (const double bytes : plan_bytes) plans_.emplace_back(std::max(bytes, 1.0), max_rows);
  share_rate();
}

void CostModel::observe(int plan, std::span<const PassLoad> drafts, double draft_seconds,
                        const PassLoad& verify, double verify_seconds) {
  target_.observe({&verify, 1}, verify_seconds);
  if (!drafts.empty()) {
    check(plan >= 0 && plan < num_plans(), "a round is drafted by a plan of the cost model");
    plans_[plan].observe(drafts, draft_seconds);
  }
  share_rate();
}

void CostModel::set_prior(const TimedPass& pass) {
  const bool verifies = pass.plan == TimedPass::kTarget;
  check(verifies || (pass.plan >= 0 && pass.plan < num_plans()), "a plan of the cost model");
  (verifies ? target_ : plans_[pass.plan]).set_prior(pass.load, pass.seconds);
  share_rate();
}

void CostModel::share_rate() {
  if (!target_.measured()) return;
  for (PassTime& plan : plans_) {
    if (!plan.measured()) plan.set_rate(target_.rate());
    if (target_.kv_observed()) plan.set_kv_rate(target_.kv_rate());
  }
}

}  // namespace quantspec
