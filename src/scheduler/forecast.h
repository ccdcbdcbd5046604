// How many tokens a request may come to write, from how many its owner's requests wrote.
// Not thread-safe. Deterministic.
#pragma once

namespace quantspec {

// Mean and spread of what recent requests wrote; the last 16 or so count.
class OutputStatistics {
 public:
  void observe(double tokens);
  bool empty() const { return count_ == 0; }
  // Mean + 1 sigma, tokens. REQUIRES: !empty().
  double upper() const;

 private:
  int count_ = 0;
  double mean_ = 0;
  double variance_ = 0;
};

// By how much more than expected is reserved: a preemption says that it was too little, and what it
// adds halves every 30 seconds.
class Caution {
 public:
  void preempted(double now);
  double factor(double now) const;  // 1 .. 1 + kMostExcess

  static constexpr double kMostExcess = 3;

 private:
  double excess_ = 0;
  double since_ = 0;  // seconds
};

}  // namespace quantspec
