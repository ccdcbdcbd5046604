#include <algorithm>
#include <cmath>

#include "base/exponential.h"
#include "sampler/sampler.h"
#include "sampler/softmax.h"

namespace quantspec {

LogProbs::LogProbs(std::span<const float> logits) : logits_(logits) {
  const float most = largest_logit(logits);
  const double sum = sum_of(logits.size(), [&](std::size_t i) {
    const float below = logits[i] - most;
    return exp_negative(below > kLowestExponent ? below : kLowestExponent);
  });
  log_sum_ = most + std::log(sum);
}

float LogProbs::of(TokenId id) const { return static_cast<float>(logits_[id] - log_sum_); }

void LogProbs::find(std::span<TokenLogProb> likeliest) const {
  std::size_t found = 0;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    // Later ids come after equal ones, so that few of a row get beyond this.
    if (found == likeliest.size() && (found == 0 || !(logits_[i] > likeliest.back().log_prob))) {
      continue;
    }
    std::size_t at = found < likeliest.size() ? found++ : found - 1;
    for (; at > 0 && logits_[i] > likeliest[at - 1].log_prob; --at)
      likeliest[at] = likeliest[at - 1];
    likeliest[at] = {static_cast<TokenId>(i), logits_[i]};
  }
  for (TokenLogProb& one : likeliest) one.log_prob = of(one.id);
}

}  // namespace quantspec
