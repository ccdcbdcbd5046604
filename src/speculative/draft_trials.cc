// What DraftLengths tries before it knows and in case it is wrong: exploration and probes.
#include <algorithm>
#include <array>
#include <utility>

#include "speculative/draft_lengths.h"

namespace quantspec {
namespace {

constexpr int kSomeSequences = 8;     // enough to learn from, in a round that may be lost
constexpr int kProbeSpacing = 16;     // rounds between probes, at least
constexpr double kProbeShare = 0.01;  // of all time may be lost to probes
constexpr double kProbeRounds = 4;    // whose time may be saved up for probes
constexpr int kProbeLen = 2;          // when drafting is off
constexpr float kSurprising = 0.5f;   // what was less likely to be accepted in full
constexpr int kFreshRounds = 64;      // what was measured so recently needs no probe

}  // namespace

// trial_: that length for so many sequences, from `first` on.
void DraftLengths::spread(int length, std::uint64_t first, std::size_t sequences) {
  std::ranges::fill(trial_, 0);
  const std::size_t count = lanes_.size();
  int room = max_rows(count) - static_cast<int>(count);
  for (std::size_t i = 0; i < count && sequences > 0; ++i) {
    const std::size_t lane = (first + i) % count;
    trial_[lane] = std::min({length, lanes_[lane].cap, room});
    room -= trial_[lane];
    sequences -= trial_[lane] > 0;
  }
}

// Whether it was measured, at about this batch's size: else nothing can be judged.
bool DraftLengths::plain_known(std::size_t sequences) const {
  const int knot = costs_.target().knot(static_cast<int>(sequences));
  return plain_trials_ == 0 && rows_seen_[knot] != kNever;
}

// The plan that seems best, if its passes were not timed: by drafts that cost little where it is
// not, first of one token, then of two.
bool DraftLengths::explore(std::span<const SequenceLoad> batch, Found& found) {
  if (candidate_ == kPlain || arms_[candidate_].trials == 0) return false;
  found.plan = candidate_;
  std::ranges::fill(lengths_, 0);
  if (!ready(candidate_)) return true;
  set_lanes(batch, candidate_);
  if (fixed_len_) {
    find_lengths();
  } else {
    spread(1 + kTrials - arms_[candidate_].trials, 0, kSomeSequences);
  }
  lengths_ = trial_;
  return true;
}

// What could turn out to be better than the estimates say, in turn. A probe runs if it is time for
// one and what it may lose was saved up; but a batch of a new size is drafted for as a whole once,
// since the time of so many rows was never measured.
bool DraftLengths::probe(std::span<const SequenceLoad> batch, Found& found) {
  if (std::exchange(probe_.repeat, false) && probe_again(batch, found)) return true;
  char& drafted_for = sizes_drafted_[costs_.target().knot(static_cast<int>(batch.size()))];
  if (found.plan == kPlain && candidate_ != kPlain && !drafted_for &&
      could_pay(batch, candidate_)) {
    if (!ready(candidate_)) return false;
    drafted_for = true;
    set_lanes(batch, candidate_);
    spread(1, 0, batch.size());
    start_probe(candidate_, found.rate, found);
    return true;
  }
  if (round_ - probe_.last_round < kProbeSpacing) return false;
  const int num_plans = static_cast<int>(arms_.size());
  const int count = 2 * (found.plan == kPlain ? num_plans : 2 + num_plans);
  for (int tried = 0; tried < count; ++tried, ++probe_.next) {
    const int kind = static_cast<int>(probe_.next % count);
    const std::optional<int> plan =
        found.plan == kPlain ? probe_off(batch, kind) : probe_on(batch, found.plan, kind);
    if (!plan || trial_ == lengths_ || is_fresh(*plan, found)) continue;
    if (loss_of_trial(found.rate) > probe_.seconds || !ready(*plan)) return false;
    start_probe(*plan, found.rate, found);
    return true;
  }
  probe_.last_round = round_;  // nor is every round to look for one
  return false;
}

// Sequences that accepted more of a probe than was expected, when drafts are off, are looked at
// once more, on credit.
bool DraftLengths::probe_again(std::span<const SequenceLoad> batch, Found& found) {
  if (found.plan != kPlain || !arms_[probe_.plan].usable) return false;
  set_lanes(batch, probe_.plan);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    trial_[i] = batch[i].drafts->promising_ ? std::min(kProbeLen, lanes_[i].cap) : 0;
  }
  if (drafted(trial_) == 0 || goodput_.verify_load(trial_).rows > max_rows(batch.size())) {
    return false;
  }
  if (loss_of_trial(found.rate) > probe_.seconds + probe_.credit) return false;
  start_probe(probe_.plan, found.rate, found);
  return true;
}

// trial_: lengths of a probe when drafting is off: by every plan for some sequences, and one token
// for all. goodput_ is about its plan. nullopt: there is no such probe now.
std::optional<int> DraftLengths::probe_off(std::span<const SequenceLoad> batch, int kind) {
  const bool all = kind % 2 == 1;
  const int plan = kind / 2;
  if (!arms_[plan].usable || (all && batch.size() == 1)) return std::nullopt;
  if (!could_pay(batch, plan)) return std::nullopt;
  set_lanes(batch, plan);
  if (all) {
    spread(1, 0, batch.size());
  } else {
    spread(kProbeLen, probe_.next_lane, kSomeSequences);
  }
  return plan;
}

// The same when it is on: every other time plain decoding, since all is judged beside it, and in
// between shorter and longer drafts, and those of the other plans.
std::optional<int> DraftLengths::probe_on(std::span<const SequenceLoad> batch, int usual,
                                          int kind) {
  const bool plain = kind % 2 == 0;
  const int other = kind / 2;  // 0: shorter, 1: longer, then plans
  const int plan = plain || other < 2 ? usual : other - 2;
  if (!arms_[plan].usable || (!plain && other >= 2 && plan == usual)) return std::nullopt;
  set_lanes(batch, plan);
  if (plain) {
    std::ranges::fill(trial_, 0);
    return plan;
  }
  if (other == 0) scale_lengths(2, 3, 0);
  if (other == 1) scale_lengths(3, 2, 1);
  if (other >= 2) find_lengths();
  return drafted(trial_) > 0 ? std::optional(plan) : std::nullopt;
}

void DraftLengths::scale_lengths(int numerator, int denominator, int more) {
  int room = max_rows(lanes_.size()) - static_cast<int>(lanes_.size());
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const int scaled = lengths_[i] == 0 ? 0 : lengths_[i] * numerator / denominator + more;
    trial_[i] = std::min({scaled, lanes_[i].cap, room});
    room -= trial_[i];
  }
}

// What the probe would show was measured recently.
bool DraftLengths::is_fresh(int plan, const Found& usual) {
  if (plan != usual.plan && !recent(arms_[plan].last_round)) return false;
  if (plan != usual.plan && usual.plan != kPlain) return true;
  return recent(rows_seen_[costs_.target().knot(goodput_.verify_load(trial_).rows)]);
}

bool DraftLengths::recent(RoundNumber round) const {
  return round != kNever && round_ - round < kFreshRounds;
}

double DraftLengths::loss_of_trial(double usual_rate) {
  return goodput_.seconds(trial_) - goodput_.tokens(trial_) / usual_rate;
}

void DraftLengths::start_probe(int plan, double usual_rate, Found& found) {
  probe_.running = true;
  probe_.plan = plan;
  probe_.loss = loss_of_trial(usual_rate);
  found.plan = plan;
}

// Before the round is learned from.
void DraftLengths::note_promising(std::span<const SequenceLoad> batch, const RoundChoice& run,
                                  std::span<const int> accepted) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const int length = run.lengths[i];
    const bool surprising =
        length > 0 && accepted[i] == length &&
        batch[i].drafts->plans_[run.plan].acceptance.survival()[length - 1] < kSurprising;
    batch[i].drafts->promising_ = surprising;
    probe_.repeat |= surprising;
  }
}

void DraftLengths::settle_probe(double seconds) {
  probe_.seconds += kProbeShare * seconds;
  if (!std::exchange(probe_.running, false)) return;
  probe_.seconds -= std::max(0.0, probe_.loss);
  probe_.credit = kProbeRounds * seconds;
  probe_.seconds = std::min(probe_.seconds, probe_.credit);
  probe_.last_round = round_;
  if (probe_.repeat) return;
  ++probe_.next;
  if (off_) probe_.next_lane += kSomeSequences;
}

}  // namespace quantspec
