#include "eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

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
  double sum = 0, squares = 0, w = 0;
  std::int64_t count = 0;
  for (const GroupSum& group : groups) {
    sum += group.sum;
    count += group.count;
    w += group.count > 0;
  }
  if (count == 0) return {};
  Mean mean{sum / count, kNone};
  for (const GroupSum& group : groups) {
    const double rest = group.sum - mean.value * group.count;
    squares += rest * rest;
    mean.of_groups.push_back(group.count > 0 ? group.sum / group.count : kNone);
  }
  if (w > 1) mean.error = std::sqrt(w / (w - 1) * squares) / count;
  return mean;
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
  ScoreSummary summary;
  for (const std::vector<Score>& group : groups) {
    const std::size_t end = std::min(last, group.size());
    const std::size_t begin = std::min(first, end);
    const auto count = static_cast<std::int64_t>(end - begin);
    summary.tokens_of_groups.push_back(count);
    GroupSum sums[4] = {{0, count}, {0, count}, {0, count}, {0, count}};
    for (const Score& score : std::span(group).subspan(begin, count)) {
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
  summary.tokens = std::ssize(kls);
  summary.nll = mean_over(nll);
  summary.kl = mean_over(kl);
  summary.kl_p99 = quantile(std::move(kls), 0.99);
  summary.acceptance = mean_over(overlap);
  summary.agreement = mean_over(agrees);
  return summary;
}

ScoreSummary summarize(std::span<const std::vector<Score>> groups) {
  return summarize(groups, 0, std::numeric_limits<std::size_t>::max());
}

Mean mean_change(std::span<const std::vector<Score>> from, std::span<const std::vector<Score>> to,
                 double Score::*value) {
  check(from.size() == to.size(), "changes are of the same groups");
  std::vector<GroupSum> changes;
  for (std::size_t group = 0; group < from.size(); ++group) {
    check(from[group].size() == to[group].size(), "changes are of the same positions");
    GroupSum change{0, std::ssize(from[group])};
    for (std::size_t i = 0; i < from[group].size(); ++i) {
      change.sum += to[group][i].*value - from[group][i].*value;
    }
    changes.push_back(change);
  }
  return mean_over(changes);
}

}  // namespace quantspec
