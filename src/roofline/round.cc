// What a round of speculation takes, by the roofline.
#include <cmath>

#include "base/error.h"
#include "roofline/roofline.h"

namespace quantspec {

double RoundPrediction::seconds_per_token() const {
  return (draft_len * draft_seconds + verify_seconds) / tokens;
}

RoundPrediction predict_round(const Machine& machine, const ModelConfig& model, int context,
                              int batch, const PassRead& draft, const PassRead& target,
                              int draft_len, double acceptance) {
  check(draft_len >= 0 && acceptance >= 0 && acceptance <= 1, "a round that can be");
  RoundPrediction round;
  round.draft_len = draft_len;
  round.draft_seconds = decode_cost(model, context, batch, 1, draft).seconds(machine);
  round.verify_seconds = decode_cost(model, context, batch, draft_len + 1, target).seconds(machine);
  round.tokens =
      acceptance < 1 ? (1 - std::pow(acceptance, draft_len + 1)) / (1 - acceptance) : draft_len + 1;
  return round;
}

RoundPrediction best_round(const Machine& machine, const ModelConfig& model, int context, int batch,
                           const PassRead& draft, const PassRead& target, double acceptance,
                           int max_len) {
  const auto predict = [&](int draft_len) {
    return predict_round(machine, model, context, batch, draft, target, draft_len, acceptance);
  };
  RoundPrediction best = predict(0);
  for (int draft_len = 1; draft_len <= max_len; ++draft_len) {
    const RoundPrediction round = predict(draft_len);
    if (round.seconds_per_token() < best.seconds_per_token()) best = round;
  }
  return best;
}

}  // namespace quantspec
