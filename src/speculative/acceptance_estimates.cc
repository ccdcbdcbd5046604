#include "speculative/acceptance_estimates.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quantspec {
namespace {

// Weights are in trials.
constexpr float kPriorWeight = 20;  // of what is expected of a plan
constexpr float kCommonWeight = 8;  // of priors, in what all plans show
// Exponent of how much better the others are: a plan that does well is no reason to try another.
constexpr float kGoodNews = 0.3f;
constexpr float kLeast = 1e-3f;        // of an expected share, and of its complement
constexpr float kPlanWeight = 20;      // of the plan's estimate in a sequence's
constexpr float kPositionWeight = 20;  // of all positions in one
// Of the evidence, kept from one round to the next.
constexpr float kKeepPlan = 0.99f;
constexpr float kKeepCommon = 0.97f;
constexpr float kMostTrials = 200;  // of a plan, however many sequences it drafts for
constexpr float kKeep = 0.98f;
constexpr float kKeepIdle = 0.995f;
constexpr float kOptimism = 0.4f;  // in standard errors

}  // namespace

void AcceptanceCounts::add(int draft_len, int accepted) {
  for (int i = 0; i < std::min({draft_len, accepted + 1, kMaxDraftLen}); ++i) {
    for (Count* count : {&pooled, &by_position[i]}) {
      count->trials += 1;
      count->accepted += i < accepted;
    }
  }
}

void AcceptanceCounts::discount(float keep) {
  pooled = {pooled.accepted * keep, pooled.trials * keep};
  for (Count& count : by_position) count = {count.accepted * keep, count.trials * keep};
}

void CommonAcceptance::observe(std::size_t plan, float prior, int draft_len, int accepted) {
  const int trials = std::min(draft_len, accepted + 1);
  Evidence& of = plans_[plan];
  of.counts.trials += trials;
  of.counts.accepted += accepted;
  of.foretold += prior * trials;
}

void CommonAcceptance::end_round() {
  float trials = 0;
  for (const Evidence& of : plans_) trials += of.counts.trials;
  const float keep = std::min(kKeepCommon, kMostTrials / std::max(trials, 1.0f));
  for (Evidence& of : plans_) {
    of.counts = {of.counts.accepted * keep, of.counts.trials * keep};
    of.foretold *= keep;
  }
}

float CommonAcceptance::expected(std::size_t plan, float prior) const {
  Evidence others;
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    if (i == plan) continue;
    others.counts.trials += plans_[i].counts.trials;
    others.counts.accepted += plans_[i].counts.accepted;
    others.foretold += plans_[i].foretold;
  }
  if (others.counts.trials == 0) return prior;
  const auto odds = [](float share) { return share / (1 - share); };
  const float foretold = others.foretold / others.counts.trials;
  const float found = std::clamp(others.counts.share(foretold, kCommonWeight), kLeast, 1 - kLeast);
  const float ratio = odds(found) / odds(foretold);
  const float now = odds(prior) * (ratio > 1 ? std::pow(ratio, kGoodNews) : ratio);
  return std::clamp(now / (1 + now), kLeast, 1 - kLeast);
}

PlanAcceptance::PlanAcceptance(float prior) : prior_(prior), expected_(prior) {
  check(prior > 0 && prior < 1, "a share of tokens that are accepted is within (0, 1)");
}

void PlanAcceptance::end_round() {
  counts_.discount(std::min(kKeepPlan, kMostTrials / std::max(counts_.pooled.trials, 1.0f)));
}

float PlanAcceptance::pooled() const { return counts_.pooled.share(expected_, kPriorWeight); }

PlanAcceptance::Others PlanAcceptance::without(const AcceptanceCounts::Count& own) const {
  const float trials = std::max(0.0f, counts_.pooled.trials - own.trials);
  const float accepted = std::clamp(counts_.pooled.accepted - own.accepted, 0.0f, trials);
  return {AcceptanceCounts::Count{accepted, trials}.share(expected_, kPriorWeight),
          trials + kPriorWeight};
}

float PlanAcceptance::at(int position) const {
  return counts_.by_position[position].share(pooled(), kPositionWeight);
}

void SequenceAcceptance::observe(const PlanAcceptance& plan, int draft_len, int accepted) {
  check(draft_len > 0 && accepted >= 0 && accepted <= draft_len,
        "no more tokens are accepted than were drafted");
  counts_.discount(kKeep);
  counts_.add(draft_len, accepted);
  refresh(plan);
}

void SequenceAcceptance::idle(const PlanAcceptance& plan, std::int64_t rounds) {
  counts_.discount(std::pow(kKeepIdle, static_cast<float>(rounds)));
  refresh(plan);
}

void SequenceAcceptance::refresh(const PlanAcceptance& plan) {
  const auto [others, known] = plan.without(counts_.pooled);
  const float weight = 1 / (1 / kPlanWeight + 1 / known);
  const float pooled = counts_.pooled.share(others, weight);
  const float ratio = pooled / plan.pooled();  // this sequence to all, at any position
  const float error = std::sqrt(pooled * (1 - pooled) / (counts_.pooled.trials + weight));
  float all = 1, hopeful_all = 1;
  for (int i = 0; i < kMaxDraftLen; ++i) {
    const float prior = std::min(1.0f, plan.at(i) * ratio);
    const float here = counts_.by_position[i].share(prior, kPositionWeight);
    survival_[i] = all *= here;
    hopeful_[i] = hopeful_all *= std::min(1.0f, here + kOptimism * error);
  }
}

}  // namespace quantspec
