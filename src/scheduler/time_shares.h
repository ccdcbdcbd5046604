// How the device's time is shared while some sequences decode and others still read their prompts.
// Over any stretch of such steps, with R seconds of rounds and P of slices,
//
//     least / (1 - least) * R - slice  <=  P  <=  most / (1 - most) * R + slice
//
// (the lower bound where there always were slices to run; the last round counts only when its
// slices do): prefill gets `least` .. `most` of the time, thus decoding 1 - most .. 1 - least.
// Between the two, slices fill what the wanted interval between tokens leaves. All times are
// measured ones: what a slice took too long is made up for later, also by rounds without any prompt
// to read. Of a slice that took longer than kMostDebt only so much is, or one that a busy machine
// held up would stop prefill for as long again, and longer at small shares.
//
// Seconds. Not thread-safe. Deterministic.
#pragma once

#include <algorithm>
#include <optional>

namespace quantspec {

class TimeShares {
 public:
  // Shares: 0 < least <= most < 1. token_interval: wanted seconds between the tokens of a sequence;
  // none: prefill takes its most.
  TimeShares(double least, double most, std::optional<double> token_interval)
      : least_{least / (1 - least)}, most_{most / (1 - most)}, token_interval_(token_interval) {}

  // A round ran. prefill_waits: there is a prompt to read.
  void round_ran(double seconds, bool prefill_waits);
  // Slices ran, and sequences decode.
  void slices_ran(double seconds);
  // For how long slices may run before the next round; <= 0: none.
  double slice_seconds() const;

  static constexpr double kMostDebt = 1;  // seconds of slices

 private:
  // What prefill may take at one of the two shares. It does not accumulate: what is there after a
  // round is no more than that round brought.
  struct Credit {
    double ratio;  // of a second of decoding
    double seconds = 0;
    void round_ran(double seconds, bool prefill_waits);
    void slices_ran(double taken) { seconds = std::max(seconds - taken, -kMostDebt); }
  };
  double spare() const;

  Credit least_;  // owed: what runs within the spare time pays it, but makes no debt
  Credit most_;   // allowed
  std::optional<double> token_interval_;
  double since_round_ = 0;  // of slices
  double last_round_ = 0;
};

}  // namespace quantspec
