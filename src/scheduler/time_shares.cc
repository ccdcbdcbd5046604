#include "scheduler/time_shares.h"

#include <algorithm>
#include <limits>

namespace quantspec {

void TimeShares::Credit::round_ran(double round, bool prefill_waits) {
  const double earned = ratio * round;
  seconds = std::min(seconds + earned, prefill_waits ? earned : 0);
}

void TimeShares::round_ran(double seconds, bool prefill_waits) {
  // A clock that stands still must not stop prefill.
  last_round_ = std::max(seconds, 1e-6);
  since_round_ = 0;
  least_.round_ran(last_round_, prefill_waits);
  most_.round_ran(last_round_, prefill_waits);
}

// What this step's round and slices leave of the wanted interval.
double TimeShares::spare() const {
  if (!token_interval_) return std::numeric_limits<double>::infinity();
  return std::max(0.0, *token_interval_ - last_round_ - since_round_);
}

void TimeShares::slices_ran(double seconds) {
  const double within = std::min(seconds, spare());
  least_.seconds = std::max(least_.seconds - within, std::min(least_.seconds, 0.0));
  least_.slices_ran(seconds - within);
  most_.slices_ran(seconds);
  since_round_ += seconds;
}

double TimeShares::slice_seconds() const {
  return std::min(std::max(spare(), least_.seconds), most_.seconds);
}

}  // namespace quantspec
