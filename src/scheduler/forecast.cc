#include "scheduler/forecast.h"

#include <algorithm>
#include <cmath>

namespace quantspec {

void OutputStatistics::observe(double tokens) {
  constexpr int kRecent = 16;
  count_ = std::min(count_ + 1, kRecent);
  const double weight = 1.0 / count_;
  const double difference = tokens - mean_;
  mean_ += weight * difference;
  variance_ = (1 - weight) * (variance_ + weight * difference * difference);
}

double OutputStatistics::upper() const { return mean_ + std::sqrt(variance_); }

void Caution::preempted(double now) {
  constexpr double kStep = 0.25;
  excess_ = std::min(factor(now) - 1 + kStep, kMostExcess);
  since_ = now;
}

double Caution::factor(double now) const {
  constexpr double kHalfLife = 30;  // seconds
  return 1 + excess_ * std::exp2(-std::max(0.0, now - since_) / kHalfLife);
}

}  // namespace quantspec
