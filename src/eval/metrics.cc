#include "eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace quantspec {

void Distribution::assign(std::span<const float> logits) {
  check(!logits.empty(), "a distribution has tokens");
  const auto best = std::ranges::max_element(logits);
  check(std::isfinite(*best), "logits are finite");
  top_ = static_cast<TokenId>(best - logits.begin());
  probs_.resize(logits.size());
  log_probs_.resize(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    log_probs_[i] = static_cast<double>(logits[i]) - *best;
    probs_[i] = std::exp(log_probs_[i]);
    sum += probs_[i];
  }
  const double log_sum = std::log(sum);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    log_probs_[i] -= log_sum;
    probs_[i] /= sum;
  }
}

Score compare(const Distribution& reference, const Distribution& other, TokenId truth) {
  const auto p = reference.probs(), q = other.probs();
  const auto log_p = reference.log_probs(), log_q = other.log_probs();
  check(p.size() == q.size(), "distributions over one vocabulary");
  Score score{other.nll(truth), 0, 0, reference.top() == other.top()};
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) score.kl += p[i] * (log_p[i] - log_q[i]);
    score.overlap += std::min(p[i], q[i]);
  }
  return score;
}

Mean mean_over(std::span<const GroupSum> groups) {
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  for (const GroupSum& group : groups) {
    sum += group.sum;
    count += group.count;
  }
  if (count == 0) return {};
  const double mean = sum / count;
  for (const GroupSum& group : groups) {
    const double rest = group.sum - mean * group.count;
    squares += rest * rest;
  }
  const double w = static_cast<double>(groups.size());
  const double error =
      w > 1 ? std::sqrt(w / (w - 1) * squares) / count : std::numeric_limits<double>::quiet_NaN();
  return {mean, error};
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil(q * values.size())) - 1;
  const auto at = values.begin() + std::clamp<std::ptrdiff_t>(rank, 0, std::ssize(values) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

ScoreSummary summarize(std::span<const std::vector<Score>> groups, std::size_t first,
                       std::size_t last) {
  std::vector<GroupSum> nll, kl, overlap, agrees;
  std::vector<double> kls;
  for (const std::vector<Score>& group : groups) {
    const std::size_t end = std::min(last, group.size());
    if (first >= end) continue;
    const auto count = static_cast<std::int64_t>(end - first);
    GroupSum sums[4] = {{0, count}, {0, count}, {0, count}, {0, count}};
    for (const Score& score : std::span(group).subspan(first, count)) {
      sums[0].sum += score.nll;
      sums[1].sum += score.kl;
      sums[2].sum += score.overlap;
      sums[3].sum += score.agrees;
      kls.push_back(score.kl);
    }
    nll.push_back(sums[0]);
    kl.push_back(sums[1]);
    overlap.push_back(sums[2]);
    agrees.push_back(sums[3]);
  }
  ScoreSummary summary{std::ssize(kls), mean_over(nll), mean_over(kl)};
  summary.kl_p99 = quantile(std::move(kls), 0.99);
  summary.acceptance = mean_over(overlap);
  summary.agreement = mean_over(agrees);
  return summary;
}

ScoreSummary summarize(std::span<const std::vector<Score>> groups) {
  return summarize(groups, 0, std::numeric_limits<std::size_t>::max());
}

}  // namespace quantspec
