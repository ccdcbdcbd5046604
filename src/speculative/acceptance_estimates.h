// How likely drafted tokens are to be accepted: of a plan, over all sequences (PlanAcceptance), and
// of one sequence by one plan (SequenceAcceptance), which leans on the plan's as long as little is
// known of the sequence. A plan leans on a prior of its kind, and that on what all plans show
// (CommonAcceptance). A new sequence so begins with what the engine knows, and one that was not
// drafted for a long time returns to it.
//
// A length may be chosen by these alone: they are functions of rounds that are over, never of the
// tokens that the round to come draws (section 3 of docs/design.md, rejection sampling).
//
// Deterministic; not thread-safe; allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/params/limits.h"

namespace quantspec {

// Tokens that were judged (those up to a round's first rejection), and accepted of them.
struct AcceptanceCounts {
  struct Count {
    float accepted = 0;
    float trials = 0;
    // As if `weight` more trials had come out as `prior`.
    float share(float prior, float weight) const {
      return (accepted + prior * weight) / (trials + weight);
    }
  };
  Count pooled;
  std::array<Count, kMaxDraftLen> by_position;

  void add(int draft_len, int accepted);
  void discount(float keep);
};

// How much better or worse than their priors all plans are together: a text that is hard for one
// plan is hard for the others.
class CommonAcceptance {
 public:
  explicit CommonAcceptance(std::size_t num_plans) : plans_(num_plans) {}

  // prior: of the plan that drafted.
  void observe(std::size_t plan, float prior, int draft_len, int accepted);
  // After every round that drafted.
  void end_round();
  // Of a plan with this prior, by what the others showed: its own evidence counts once.
  float expected(std::size_t plan, float prior) const;

 private:
  struct Evidence {
    AcceptanceCounts::Count counts;
    float foretold = 0;  // of the trials, by priors
  };
  std::vector<Evidence> plans_;
};

// Of one plan, over all sequences.
class PlanAcceptance {
 public:
  // Of a plan before any evidence, where nothing is known of its kind: worth a try.
  static constexpr float kUsual = 0.8f;

  // prior: the share of tokens that is accepted of such plans, within (0, 1).
  explicit PlanAcceptance(float prior = kUsual);
  float prior() const { return prior_; }
  void observe(int draft_len, int accepted) { counts_.add(draft_len, accepted); }
  // What is expected of it without evidence of its own, instead of the prior.
  void expect(float share) { expected_ = share; }
  // After every round that this plan drafted.
  void end_round();
  float pooled() const;
  // Given that the tokens before were accepted. 0 <= position < kMaxDraftLen.
  float at(int position) const;
  float trials() const { return counts_.pooled.trials; }
  // What it would be without these trials, and of how many trials that is worth.
  struct Others {
    float share, trials;
  };
  Others without(const AcceptanceCounts::Count& own) const;

 private:
  float prior_;
  float expected_;
  AcceptanceCounts counts_;
};

// Of one sequence by one plan.
class SequenceAcceptance {
 public:
  using Survival = std::array<float, kMaxDraftLen>;

  explicit SequenceAcceptance(const PlanAcceptance& plan) { refresh(plan); }
  // A round in which the sequence drafted by the plan. REQUIRES: 0 <= accepted <= draft_len > 0.
  void observe(const PlanAcceptance& plan, int draft_len, int accepted);
  // So many rounds went by in which it did not: what is known fades.
  void idle(const PlanAcceptance& plan, std::int64_t rounds);

  // The probability that the first i + 1 drafted tokens are all accepted: never rises with i.
  const Survival& survival() const { return survival_; }
  // The same if tokens are accepted as often as might well be: half a standard error more.
  const Survival& hopeful() const { return hopeful_; }

 private:
  void refresh(const PlanAcceptance& plan);

  AcceptanceCounts counts_;
  Survival survival_;
  Survival hopeful_;
};

}  // namespace quantspec
