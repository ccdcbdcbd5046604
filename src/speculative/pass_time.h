// The time of one kind of pass (the target's, or the drafts of one plan) by its rows and by the KV
// that it reads, learned from passes that were timed:
//
//     seconds = a(rows) + c * kv_bytes + e * row_bytes
//
// a() is what the weights take; it is kept at knots (1, 2, .. 8 rows, then four to an octave) and
// linear between them. c is what a byte of the cache takes, e what a row takes beside the first
// for every byte that it attends to.
//
// What is estimated are the logarithms of a(knot), c and e, by a Kalman filter: its H are the
// shares of the predicted time, its covariance says how far a measurement at some rows speaks for
// others. So one measurement moves all, passes timed together are told apart as far as they differ,
// and whatever was not measured follows its neighbours. Before the first measurement the estimate
// is what the bytes of weights and cache take at some rate.
//
// A measurement that is far too long is an outlier (a descheduled thread), of which little is
// believed, unless several come in a row; one that is far too short says that the past was too
// long.
//
// Not thread-safe; deterministic; allocates when it is made. Times are in seconds.
#pragma once

#include <span>
#include <vector>

namespace quantspec {

// What a pass has to do.
struct PassLoad {
  int rows = 0;          // of all sequences; a row is a position that is computed
  double kv_bytes = 0;   // of all sequences, each once
  double row_bytes = 0;  // of every sequence: its rows but one, times its kv_bytes
};

class PassTime {
 public:
  // weight_bytes: what a pass reads besides the cache, > 0. max_rows >= 1: of one pass.
  PassTime(double weight_bytes, int max_rows);

  // Never less for more rows. REQUIRES: 1 <= load.rows <= max_rows.
  double seconds(const PassLoad& load) const {
    return weights_seconds(load.rows) + kv_rate_ * load.kv_bytes + row_rate_ * load.row_bytes;
  }
  double weights_seconds(int rows) const;          // a(rows)
  double kv_rate() const { return kv_rate_; }      // c: seconds a byte
  double row_rate() const { return row_rate_; }    // e: seconds a row and byte
  double uncertainty(const PassLoad& load) const;  // standard deviation of log(seconds)

  // Passes that took so long together. Times that are not positive and finite are ignored.
  void observe(std::span<const PassLoad> passes, double seconds);
  // The same of a careful measurement: it is believed, and may be put in at any rows in any order.
  void set_prior(const PassLoad& pass, double seconds);
  // Until something is measured: weights and cache are read at so many seconds a byte.
  void set_rate(double seconds_per_byte);
  // Until a pass over a cache is observed: it is read at so many.
  void set_kv_rate(double seconds_per_byte);

  bool measured() const { return measured_; }
  bool kv_observed() const { return kv_observed_; }
  int max_rows() const { return static_cast<int>(knot_below_.size()) - 1; }
  // The rate at which a pass of one row reads its weights.
  double rate() const { return weights_seconds(1) / weight_bytes_; }

  int num_knots() const { return static_cast<int>(knots_.size()); }
  int knot(int rows) const { return knot_below_[rows]; }  // the last with no more rows

 private:
  struct Surprise {
    double log_ratio;  // of the measured time to the predicted
    bool whole;        // all of it is believed
  };

  double& covariance(int i, int j) { return covariance_[i * size() + j]; }
  double covariance(int i, int j) const { return covariance_[i * size() + j]; }
  int size() const { return num_knots() + 2; }
  int kv_index() const { return num_knots(); }
  int row_index() const { return num_knots() + 1; }

  double prior_log(int index, double seconds_per_byte) const;
  double prior_covariance(int i, int j) const;
  // Adds the times of a pass, by the filter's own state, to `parts`; returns their sum.
  double add_parts(const PassLoad& load, std::span<double> parts) const;
  void project(std::span<const double> shares) const;
  double variance_of(std::span<const double> shares) const;
  Surprise judge(double log_ratio, double variance);
  void widen(double variance);
  void drift();
  void update(std::span<const double> shares, double log_ratio, double noise, bool learn);
  void learn_noise(double log_ratio, double variance);
  void tabulate();

  double weight_bytes_;
  double seconds_per_byte_;         // of the prior
  std::vector<int> knots_;          // rows
  std::vector<int> knot_below_;     // [rows]
  std::vector<double> logs_;        // a at the knots, c, e
  std::vector<double> covariance_;  // of logs_, row-major
  std::vector<double> drift_;       // to which covariance_ returns as what was learned gets old
  double noise_;                    // variance of a measurement's logarithm
  bool measured_ = false;
  bool kv_observed_ = false;
  int late_ = 0;           // measurements in a row that were far too long
  double least_late_ = 0;  // log_ratio of the shortest of them

  std::vector<double> by_knot_;  // a at the knots, never falling
  double kv_rate_ = 0;
  double row_rate_ = 0;
  mutable std::vector<double> shares_, projected_;  // scratch
  std::vector<double> pool_weight_;
  std::vector<int> pool_size_;
};

}  // namespace quantspec
