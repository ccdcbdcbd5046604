#include "speculative/draft_estimates.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quantspec {
namespace {

constexpr int kStaleRounds = 64;  // after so long without one, old measurements count little

}  // namespace

void TimeEstimate::observe(double seconds, int round) {
  if (round - newest_ > kStaleRounds && known()) {
    const double old = this->seconds();
    recent_.fill(kNever);
    recent_[0] = old;
    count_ = 1;
  }
  std::shift_right(recent_.begin(), recent_.end(), 1);
  recent_[0] = seconds;
  count_ = std::min(count_ + 1, kWindow);
  newest_ = round;
}

double TimeEstimate::seconds() const {
  check(known(), "a time was measured before it is asked for");
  auto sorted = recent_;
  std::sort(sorted.begin(), sorted.end());
  return sorted[(count_ - 1) / 2];
}

int VerifyTime::nearest(int rows, int step) const {
  const int end = static_cast<int>(by_rows_.size());
  while (rows > 0 && rows < end && !by_rows_[rows].known()) rows += step;
  return rows < end ? rows : 0;
}

double VerifyTime::trusted(int rows) const {
  double seconds = by_rows_[rows].seconds();
  if (by_rows_[rows].count() > 1) return seconds;
  for (int fewer = 1; fewer < rows; ++fewer) {
    if (!by_rows_[fewer].known()) continue;
    seconds = std::min(seconds, by_rows_[fewer].seconds() * rows / fewer);
  }
  return seconds;
}

double VerifyTime::seconds(int rows) const {
  const int below = nearest(rows, -1);
  const int above = nearest(rows, 1);
  if (below == 0) return above == 0 ? 0 : trusted(above);
  const double low = trusted(below);
  if (below == above) return low;
  // Between two measured row counts, or beyond the most at the mean slope so far.
  const int from = above == 0 ? nearest(1, 1) : below;
  const int to = above == 0 ? below : above;
  if (from == to) return low;
  const double slope = (trusted(to) - trusted(from)) / (to - from);
  return low + std::max(slope, 0.0) * (rows - below);
}

void AcceptanceEstimate::observe(int draft_len, int accepted) {
  pooled_.discount(kKeep);
  for (Count& count : by_position_) count.discount(kKeep);
  for (int i = 0; i < std::min(draft_len, accepted + 1); ++i) {
    for (Count* count : {&pooled_, &by_position_[i]}) {
      count->trials += 1;
      count->accepted += i < accepted;
    }
  }
}

void AcceptanceEstimate::fade() {
  pooled_.discount(kKeepIdle);
  for (Count& count : by_position_) count.discount(kKeepIdle);
}

double AcceptanceEstimate::at(int position, double optimism) const {
  const double mean = by_position_[position].share(pooled(), kPooledTrials);
  if (optimism == 0) return mean;
  const double error = std::sqrt(pooled() * (1 - pooled()) / (pooled_.trials + kPriorTrials));
  return std::min(1.0, mean + optimism * error);
}

double AcceptanceEstimate::expected_tokens(int draft_len, double optimism) const {
  double tokens = 1;
  double all_accepted = 1;
  for (int i = 0; i < draft_len; ++i) {
    all_accepted *= at(i, optimism);
    tokens += all_accepted;
  }
  return tokens;
}

}  // namespace quantspec
