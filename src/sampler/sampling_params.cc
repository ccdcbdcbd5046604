#include "sampler/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "sampler/fields.h"
#include "sampler/parameters.h"

namespace quantspec {

namespace {

void require_different_tokens(std::vector<TokenId> ids, int vocab_size, const Field& field) {
  std::ranges::sort(ids);
  if (!ids.empty() && (ids.front() < 0 || ids.back() >= vocab_size)) {
    fail(ErrorKind::kInvalidRequest, "{}: {} is no token; ids go from 0 to {}", field,
         ids.front() < 0 ? ids.front() : ids.back(), vocab_size - 1);
  }
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice != ids.end()) {
    fail(ErrorKind::kInvalidRequest, "{}: token {} is there twice; give it once", field, *twice);
  }
}

}  // namespace

void SamplingParams::validate() const {
  for_each_sampling_param([&](const auto& param) {
    const auto value = this->*param.member;
    if (value >= param.low && value <= param.high) return;  // a NaN is not
    fail(ErrorKind::kInvalidRequest, "{} is {}; it must be {}", param.field, value, param.range);
  });
}

void LogitBiases::validate(int vocab_size) const {
  if (min_tokens < 0) {
    fail(ErrorKind::kInvalidRequest, "{} is {}; it must be 0 (off) or more", field::kMinTokens,
         min_tokens);
  }
  if (always.size() + ends.size() > kMostLogitBiases) {
    fail(ErrorKind::kInvalidRequest, "{}: of {} tokens, with those that end a text; at most {}",
         field::kLogitBias, always.size() + ends.size(), kMostLogitBiases);
  }
  std::vector<TokenId> ids;
  for (const LogitBias& bias : always) {
    ids.push_back(bias.id);
    const bool forbids = bias.add == -std::numeric_limits<float>::infinity();
    if (forbids || std::abs(bias.add) <= kLargestLogitBias) continue;  // a NaN is not
    fail(ErrorKind::kInvalidRequest, "{} of token {} is {}; it must be from {} to {}",
         field::kLogitBias, bias.id, bias.add, -kLargestLogitBias, kLargestLogitBias);
  }
  require_different_tokens(std::move(ids), vocab_size, field::kLogitBias);
  require_different_tokens(ends, vocab_size, field::kMinTokens);
}

}  // namespace quantspec
