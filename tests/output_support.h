// What a request gives, and what it gives alone: by plain decoding, beside nobody, of nothing that
// was read before.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "engine/request_loop.h"
#include "tests/model_support.h"

namespace quantspec::testing {

struct Output {
  std::vector<TokenId> tokens = {};
  std::vector<float> log_probs = {};

  void add(const Step& step) {
    EXPECT_EQ(step.log_probs.size(), step.tokens.size());
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    log_probs.insert(log_probs.end(), step.log_probs.begin(), step.log_probs.end());
  }
  bool is_prefix_of(const Output& other) const {
    return tokens.size() <= other.tokens.size() &&
           std::ranges::equal(tokens, std::span(other.tokens).first(tokens.size())) &&
           std::ranges::equal(log_probs, std::span(other.log_probs).first(log_probs.size()));
  }
};

// AnyModel: has a model, a pool and a decoder, as LoadedModel.
template <typename AnyModel>
Output alone(AnyModel& with, const Request& request, int context, int chunk) {
  DecodingOptions options;
  options.sampling = request.sampling;
  options.biases = request.biases;
  options.spec_sampling = SpecSampling::kCoupled;
  options.draft_len = 0;
  options.log_probs = true;
  Sequence sequence(with.model, with.pool, context, options, {.chunk = chunk});
  const auto reader = with.decoder.begin_prompt(sequence, request.prompt);
  while (!reader->done()) reader->step();
  Output output;
  output.add(with.decoder.end_prompt(sequence));
  while (std::ssize(output.tokens) < request.predict) output.add(with.decoder.step(sequence, 1));
  return output;
}

}  // namespace quantspec::testing
