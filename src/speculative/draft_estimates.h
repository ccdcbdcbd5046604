// Running estimates from which DraftControl chooses: times that ignore outliers, and acceptance by
// position. Private to speculative/. Not thread-safe. Times are in seconds; `round` counts rounds.
#pragma once

#include <array>
#include <limits>
#include <vector>

namespace quantspec {

// A time that is measured again and again while it slowly changes: the lower median of the last
// few measurements (a descheduled thread only ever makes a measurement longer).
class TimeEstimate {
 public:
  void observe(double seconds, int round);
  int count() const { return count_; }  // measurements in the window
  bool known() const { return count_ > 0; }
  double seconds() const;                     // REQUIRES: known()
  int last_round() const { return newest_; }  // of the latest measurement

 private:
  static constexpr int kWindow = 5;
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::array<double, kWindow> recent_{kNever, kNever, kNever, kNever, kNever};  // newest first
  int count_ = 0;
  int newest_ = 0;
};

// The time of a target pass by its number of rows. It is not linear (kernels work on blocks of
// rows), so every row count is estimated by itself; those never seen are interpolated.
// NOTE: a row count seen only once is taken to need no more time per row than fewer rows do, lest
// one outlier rule it out for good.
class VerifyTime {
 public:
  explicit VerifyTime(int max_rows) : by_rows_(max_rows + 1) {}
  void observe(int rows, double seconds, int round) { by_rows_[rows].observe(seconds, round); }
  const TimeEstimate& measured(int rows) const { return by_rows_[rows]; }
  double seconds(int rows) const;  // 0 when nothing was measured
  int most_rows() const { return nearest(static_cast<int>(by_rows_.size()) - 1, -1); }

 private:
  // The first row count from `rows` on, in steps of +-1, that was measured; 0 if there is none.
  int nearest(int rows, int step) const;
  double trusted(int rows) const;

  std::vector<TimeEstimate> by_rows_;  // [rows]; [0] is unused
};

// The probability that the i-th drafted token of a round is accepted given that those before it
// were, for all i. Evidence is discounted with every round, and positions with little of it lean on
// the pooled estimate of all positions.
class AcceptanceEstimate {
 public:
  explicit AcceptanceEstimate(int max_len) : by_position_(max_len) {}
  void observe(int draft_len, int accepted);
  // A round went by in which other drafts were made: what is known of these fades.
  void fade();
  // optimism: standard errors of the pooled estimate that are added.
  double at(int position, double optimism = 0) const;
  double pooled() const { return pooled_.share(kPrior, kPriorTrials); }
  // 1 + sum_i prod_{j <= i} at(j): tokens that a round yields, the target's own included.
  double expected_tokens(int draft_len, double optimism = 0) const;

 private:
  static constexpr double kPrior = 0.8;        // before any evidence: worth a try
  static constexpr double kPriorTrials = 3;    // the weight of that prior
  static constexpr double kPooledTrials = 20;  // the weight of the pooled estimate in a position's
  static constexpr double kKeep = 0.98;        // of the evidence from one round to the next
  static constexpr double kKeepIdle = 0.995;   // the same when nothing new is learned

  struct Count {
    double accepted = 0;
    double trials = 0;
    double share(double prior, double weight) const {
      return (accepted + prior * weight) / (trials + weight);
    }
    void discount(double keep) { accepted *= keep, trials *= keep; }
  };
  Count pooled_;
  std::vector<Count> by_position_;
};

}  // namespace quantspec
