#include "speculative/round_bytes.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {
namespace {

// What to expect of the plan, which is that of one of both planes where matrices have no lower one:
// four bits are all that they have.
template <typename F>
Plan as_accepted(const Plan& plan, const F& bytes) {
  Plan layers = plan;
  for (LayerPlan& layer : layers.layers) {
    if (layer.weights == WeightRead::kUpper) layer.weights = WeightRead::kBoth;
  }
  if (bytes(layers) != bytes(plan)) layers = plan;
  Plan all = layers;
  if (all.head == WeightRead::kUpper) all.head = WeightRead::kBoth;
  return bytes(all) == bytes(plan) ? all : layers;
}

// Of drafted tokens, by what a plan reads less than its target: about what books give
// (docs/results.md). Where layers are left out, anything can be.
float usual_acceptance(const Plan& plan) {
  constexpr float kUpperLayers = 0.93f, kOtherLayers = 0.97f, kFewTokens = 0.97f;
  constexpr float kUpperHead = 0.946f;  // beside that: 4-bit weights, all of them, give 0.88
  const float head = plan.head == WeightRead::kUpper ? kUpperHead : 1;
  if (plan.looks_up()) return PlanAcceptance::kUsual;
  float least = 1;
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.run) return PlanAcceptance::kUsual;
    const bool few = layer.kv.tokens != KvTokens::kAll;
    const float weights = layer.weights == WeightRead::kUpper ? kUpperLayers : kOtherLayers;
    least = std::min(least, head * weights * (few ? kFewTokens : 1));
  }
  return least;
}

}  // namespace

RoundBytes::RoundBytes(const Model& model, const KvShape& shape, KvStore store, const Plan& target,
                       std::span<const Plan> plans)
    : target_kv_(shape, store, target) {
  const auto weights = [&](const Plan& plan) {  // without KV
    if (plan.looks_up()) return 0.0;
    return static_cast<double>(pass_bytes(model.weights(), model.backend(), shape, plan, 0));
  };
  target_weights_ = weights(target);
  for (const Plan& plan : plans) {
    if (plan.looks_up()) lookup_ = static_cast<int>(names_.size());
    names_.push_back(plan.name);
    plan_weights_.push_back(weights(plan));
    plan_kv_.emplace_back(shape, store, plan);
    by_mass_.push_back(plan.chooses_by_mass());
    from_tokens_.push_back(plan.from_tokens);
    acceptance_.push_back(usual_acceptance(as_accepted(plan, weights)));
  }
}

DraftLengths::Options RoundBytes::options(std::optional<int> fixed_len) const {
  return {.plans = names_,
          .plan_bytes = plan_weights_,
          .by_mass = by_mass_,
          .acceptance = acceptance_,
          .lookup = lookup_,
          .target_bytes = target_weights_,
          .fixed_len = fixed_len};
}

void RoundBytes::draft(int context, std::span<double> by_plan) const {
  check(by_plan.size() == plan_kv_.size(), "room for the bytes of every plan");
  for (std::size_t i = 0; i < plan_kv_.size(); ++i) {
    by_plan[i] = context < from_tokens_[i] ? -1 : plan_kv_[i].after(context);
  }
}

}  // namespace quantspec
