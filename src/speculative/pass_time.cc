#include "speculative/pass_time.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace quantspec {
namespace {

// What is assumed before anything is known.
constexpr double kSecondsPerByte = 1 / 50e9;
// Of a row's time: what one more row adds. Little: what is thought cheap is tried, and so
// corrected.
constexpr double kRowShare = 0.01;
// Standard deviations of logarithms. A first measurement moves all times by nearly its ratio, since
// the rate is what is known least; the shape is known better.
constexpr double kRateDeviation = 4;
constexpr double kShapeDeviation = 0.6;
constexpr double kShapeOctaves = 2;  // so far apart in rows, times vary nearly on their own
constexpr double kKvDeviation = 0.7;
constexpr double kRowDeviation = 1.2;
// What was learned gets old.
constexpr double kDrift = 5e-5;  // of the way to the drift's covariance, with every measurement
constexpr double kDriftRateDeviation = 0.3;
// Measurements.
constexpr double kFirstNoise = 0.05;  // relative
constexpr double kLeastNoise = 0.01;
constexpr double kPriorNoise = 0.01;
constexpr double kLearnNoise = 0.03;
constexpr double kSurprise = 2.5;  // standard deviations from which on a measurement is odd
constexpr int kLateToBelieve = 4;  // too long, in a row

std::vector<int> knots_up_to(int max_rows) {
  std::vector<int> knots;
  for (int rows = 1; rows < max_rows;) {
    knots.push_back(rows);
    rows += std::max(1, static_cast<int>(std::bit_floor(static_cast<unsigned>(rows))) / 4);
  }
  knots.push_back(max_rows);
  return knots;
}

}  // namespace

PassTime::PassTime(double weight_bytes, int max_rows)
    : weight_bytes_(weight_bytes),
      seconds_per_byte_(kSecondsPerByte),
      knots_(knots_up_to(std::max(max_rows, 1))),
      knot_below_(std::max(max_rows, 1) + 1),
      noise_(kFirstNoise * kFirstNoise) {
  check(max_rows >= 1, "a pass has a row or more");
  check(weight_bytes > 0 && std::isfinite(weight_bytes), "a pass reads weights");
  for (int knot = 0; knot < num_knots(); ++knot) {
    std::fill(knot_below_.begin() + knots_[knot], knot_below_.end(), knot);
  }
  logs_.resize(size());
  for (int i = 0; i < size(); ++i) logs_[i] = prior_log(i, seconds_per_byte_);
  covariance_.resize(static_cast<std::size_t>(size()) * size());
  drift_.resize(covariance_.size());
  for (int i = 0; i < size(); ++i) {
    for (int j = 0; j < size(); ++j) {
      const double shape = prior_covariance(i, j);
      covariance(i, j) = shape + kRateDeviation * kRateDeviation;
      drift_[i * size() + j] = shape + kDriftRateDeviation * kDriftRateDeviation;
    }
  }
  by_knot_.reserve(num_knots());
  shares_.resize(size());
  projected_.resize(size());
  pool_weight_.reserve(num_knots());
  pool_size_.reserve(num_knots());
  tabulate();
}

double PassTime::prior_log(int index, double seconds_per_byte) const {
  if (index == kv_index()) return std::log(seconds_per_byte);
  if (index == row_index()) return std::log(kRowShare * seconds_per_byte);
  return std::log(weight_bytes_ * seconds_per_byte * (1 + kRowShare * (knots_[index] - 1)));
}

// Of the shape alone: the rate is common to all.
double PassTime::prior_covariance(int i, int j) const {
  if (i >= kv_index() || j >= kv_index()) {
    const double deviation = i == kv_index() ? kKvDeviation : kRowDeviation;
    return i == j ? deviation * deviation : 0;
  }
  const double octaves = std::abs(std::log2(static_cast<double>(knots_[i]) / knots_[j]));
  return kShapeDeviation * kShapeDeviation * std::exp(-octaves / kShapeOctaves);
}

double PassTime::weights_seconds(int rows) const {
  const int low = knot_below_[rows];
  if (knots_[low] == rows) return by_knot_[low];
  const double along = static_cast<double>(rows - knots_[low]) / (knots_[low + 1] - knots_[low]);
  return by_knot_[low] + along * (by_knot_[low + 1] - by_knot_[low]);
}

double PassTime::add_parts(const PassLoad& load, std::span<double> parts) const {
  check(load.rows >= 1 && load.rows <= max_rows(), "rows of a pass are within max_rows");
  const int low = knot_below_[load.rows];
  const double span = low + 1 < num_knots() ? knots_[low + 1] - knots_[low] : 1;
  const double along = (load.rows - knots_[low]) / span;
  const auto add = [&](int index, double factor) {
    const double part = factor * std::exp(logs_[index]);
    parts[index] += part;
    return part;
  };
  double sum = add(low, 1 - along);
  if (along > 0) sum += add(low + 1, along);
  if (load.kv_bytes > 0) sum += add(kv_index(), load.kv_bytes);
  if (load.row_bytes > 0) sum += add(row_index(), load.row_bytes);
  return sum;
}

// projected_ = covariance * shares
void PassTime::project(std::span<const double> shares) const {
  std::fill(projected_.begin(), projected_.end(), 0.0);
  for (int j = 0; j < size(); ++j) {
    if (shares[j] == 0) continue;
    for (int i = 0; i < size(); ++i) projected_[i] += covariance(j, i) * shares[j];
  }
}

double PassTime::variance_of(std::span<const double> shares) const {
  project(shares);
  double variance = 0;
  for (int i = 0; i < size(); ++i) variance += shares[i] * projected_[i];
  return std::max(variance, 0.0);
}

double PassTime::uncertainty(const PassLoad& load) const {
  std::fill(shares_.begin(), shares_.end(), 0.0);
  const double seconds = add_parts(load, shares_);
  for (double& share : shares_) share /= seconds;
  return std::sqrt(variance_of(shares_));
}

void PassTime::observe(std::span<const PassLoad> passes, double seconds) {
  if (passes.empty() || !(seconds > 0) || !std::isfinite(seconds)) return;
  std::fill(shares_.begin(), shares_.end(), 0.0);
  double predicted = 0;
  for (const PassLoad& pass : passes) predicted += add_parts(pass, shares_);
  for (double& share : shares_) share /= predicted;
  drift();
  const double variance = variance_of(shares_);
  const double log_ratio = std::log(seconds / predicted);
  const Surprise surprise = judge(log_ratio, variance + noise_);
  measured_ = true;
  for (const PassLoad& pass : passes) kv_observed_ |= pass.kv_bytes > 0;
  if (surprise.whole) learn_noise(surprise.log_ratio, variance);
  update(shares_, surprise.log_ratio, noise_, surprise.whole);
  tabulate();
}

void PassTime::set_prior(const PassLoad& pass, double seconds) {
  check(seconds > 0 && std::isfinite(seconds), "a pass takes time");
  std::fill(shares_.begin(), shares_.end(), 0.0);
  const double predicted = add_parts(pass, shares_);
  for (double& share : shares_) share /= predicted;
  measured_ = true;
  update(shares_, std::log(seconds / predicted), kPriorNoise * kPriorNoise, true);
  tabulate();
}

void PassTime::set_rate(double seconds_per_byte) {
  check(seconds_per_byte > 0 && std::isfinite(seconds_per_byte), "reading a byte takes time");
  if (measured()) return;
  const double change = std::log(seconds_per_byte / seconds_per_byte_);
  for (double& log : logs_) log += change;
  seconds_per_byte_ = seconds_per_byte;
  tabulate();
}

void PassTime::set_kv_rate(double seconds_per_byte) {
  check(seconds_per_byte > 0 && std::isfinite(seconds_per_byte), "reading a byte takes time");
  if (kv_observed_) return;
  logs_[kv_index()] = std::log(seconds_per_byte);
  tabulate();
}

PassTime::Surprise PassTime::judge(double log_ratio, double variance) {
  const double odd = kSurprise * std::sqrt(variance);
  if (log_ratio <= odd) {
    late_ = 0;
    if (log_ratio < -odd) widen(log_ratio * log_ratio / (kSurprise * kSurprise) - variance);
    return {log_ratio, true};
  }
  least_late_ = late_ == 0 ? log_ratio : std::min(least_late_, log_ratio);
  if (++late_ < kLateToBelieve) return {odd, false};
  late_ = 0;
  if (least_late_ > odd) {
    widen(least_late_ * least_late_ / (kSurprise * kSurprise) - variance);
  }
  return {least_late_, true};
}

// Everything may have become faster or slower.
void PassTime::widen(double variance) {
  for (double& entry : covariance_) entry += variance;
}

void PassTime::drift() {
  for (std::size_t i = 0; i < covariance_.size(); ++i) {
    covariance_[i] += kDrift * (drift_[i] - covariance_[i]);
  }
}

// The Kalman filter's step. An outlier teaches nothing about how well things are known.
void PassTime::update(std::span<const double> shares, double log_ratio, double noise, bool learn) {
  const double variance = variance_of(shares) + noise;
  for (int i = 0; i < size(); ++i) logs_[i] += projected_[i] / variance * log_ratio;
  if (!learn) return;
  for (int i = 0; i < size(); ++i) {
    const double gain = projected_[i] / variance;
    for (int j = 0; j < size(); ++j) covariance(i, j) -= gain * projected_[j];
  }
}

// From measurements of what is known well.
void PassTime::learn_noise(double log_ratio, double variance) {
  if (variance > noise_) return;
  const double square = std::clamp(log_ratio * log_ratio - variance, 0.0, 9 * noise_);
  noise_ = std::max(noise_ + kLearnNoise * (square - noise_), kLeastNoise * kLeastNoise);
}

// by_knot_: the times nearest to the estimates, by how well those are known, that do not fall
// with rows (pool adjacent violators).
void PassTime::tabulate() {
  by_knot_.clear();
  pool_weight_.clear();
  pool_size_.clear();
  for (int knot = 0; knot < num_knots(); ++knot) {
    double value = std::exp(logs_[knot]);
    double weight = 1 / std::max(covariance(knot, knot), 1e-9);
    int count = 1;
    while (!by_knot_.empty() && by_knot_.back() > value) {
      const double both = pool_weight_.back() + weight;
      value = (by_knot_.back() * pool_weight_.back() + value * weight) / both;
      weight = both;
      count += pool_size_.back();
      by_knot_.pop_back(), pool_weight_.pop_back(), pool_size_.pop_back();
    }
    by_knot_.push_back(value);
    pool_weight_.push_back(weight);
    pool_size_.push_back(count);
  }
  by_knot_.resize(num_knots());  // from pools to knots, last first
  int knot = num_knots();
  for (int pool = static_cast<int>(pool_size_.size()) - 1; pool >= 0; --pool) {
    const double value = by_knot_[pool];
    for (int i = 0; i < pool_size_[pool]; ++i) by_knot_[--knot] = value;
  }
  kv_rate_ = std::exp(logs_[kv_index()]);
  row_rate_ = std::exp(logs_[row_index()]);
}

}  // namespace quantspec
