// How far one distribution of the next token lies from another, and means of that with their
// errors. All in double, natural logarithms. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace quantspec {

// softmax(logits).
class Distribution {
 public:
  Distribution() = default;
  explicit Distribution(std::span<const float> logits) { assign(logits); }
  void assign(std::span<const float> logits);

  std::span<const double> probs() const { return probs_; }
  std::span<const double> log_probs() const { return log_probs_; }
  TokenId top() const { return top_; }  // the lowest id of the likeliest
  // Nats that the token takes: -log p.
  double nll(TokenId token) const { return -log_probs_[token]; }

 private:
  std::vector<double> probs_;
  std::vector<double> log_probs_;
  TokenId top_ = 0;
};

// What a pass gave at one position, beside the reference's distribution there.
struct Score {
  double nll = 0;      // of the true next token
  double kl = 0;       // KL(reference || this), nats
  double overlap = 1;  // sum of min(reference, this): the chance that a draft is accepted
  bool agrees = true;  // both have the same likeliest token
};
Score compare(const Distribution& reference, const Distribution& other, TokenId truth);

// A mean, and its standard error taken over groups (windows, prompts), since the positions of one
// text are not independent. NaN where there is but one group.
struct Mean {
  double value = 0;
  double error = 0;
  std::vector<double> of_groups = {};  // each group's own mean; NaN where it has no values
};
// One group: the sum of its values, and how many they are.
struct GroupSum {
  double sum = 0;
  std::int64_t count = 0;
};
// The mean over all values; error = sqrt(W/(W-1) sum_g (sum_g - mean count_g)^2) / total count,
// with W groups that have values.
Mean mean_over(std::span<const GroupSum> groups);

// `values` need not be sorted: the least that is not below a share `q` of them. 0 for none.
double quantile(std::vector<double> values, double q);

struct ScoreSummary {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> tokens_of_groups = {};
  Mean nll;
  Mean kl;
  double kl_p99 = 0;
  Mean acceptance;  // mean overlap
  Mean agreement;   // share of the same likeliest token
};
// Of positions [first, last) of every group.
ScoreSummary summarize(std::span<const std::vector<Score>> groups, std::size_t first,
                       std::size_t last);
ScoreSummary summarize(std::span<const std::vector<Score>> groups);
// By how much a value of the scores changes from one reading to another. REQUIRES: of the same
// positions.
Mean mean_change(std::span<const std::vector<Score>> from, std::span<const std::vector<Score>> to,
                 double Score::*value);

}  // namespace quantspec
