// How tokens are chosen, as requests say it: plain data (parameters.h has the bounds).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/token.h"

namespace quantspec {

struct SamplingParams {
  float temperature = 1.0f;     // 0: greedy
  int top_k = 0;                // 0: off
  float top_p = 1.0f;           // 1: off
  float min_p = 0.0f;           // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  int repeat_last_n = 64;       // tokens of history that the penalty looks at; -1: all
  float presence_penalty = 0;   // of tokens that were chosen before; 0: off
  float frequency_penalty = 0;  // of each time that they were; 0: off
  std::uint64_t seed = 0;

  constexpr bool greedy() const { return temperature == 0.0f; }
  constexpr bool penalizes_repeats() const { return repeat_penalty != 1.0f && repeat_last_n != 0; }
  constexpr bool penalizes_counts() const {
    return presence_penalty != 0 || frequency_penalty != 0;
  }
  constexpr bool penalizes() const { return penalizes_repeats() || penalizes_counts(); }
  // Throws Error(kInvalidRequest) naming the parameter and its valid range.
  void validate() const;
};

// What a request adds to logits before all else is done with them.
struct LogitBias {
  TokenId id;
  float add;  // to its logit; -infinity: it cannot be chosen
  bool operator==(const LogitBias&) const = default;
};

// Of a request. Plain data.
struct LogitBiases {
  std::vector<LogitBias> always = {};  // of different tokens
  // Different tokens that cannot be chosen before min_tokens were: those that would end the text.
  std::vector<TokenId> ends = {};
  int min_tokens = 0;

  bool empty() const { return always.empty() && (ends.empty() || min_tokens <= 0); }
  // Throws Error(kInvalidRequest) that says what is wrong: too many, an id that is no token or is
  // there twice, an addition that is neither from -100 to 100 nor -infinity.
  void validate(int vocab_size) const;
};

// As OpenAI's API has them: 100 outweighs what models give their likeliest token.
inline constexpr float kLargestLogitBias = 100.0f;
inline constexpr std::size_t kMostLogitBiases = 1024;  // those of ends too

// The logarithm of a token's probability by a row of logits as they are.
struct TokenLogProb {
  TokenId id;
  float log_prob;
  bool operator==(const TokenLogProb&) const = default;
};

// Of a prompt: its tokens but the first, and for each of them so many of the likeliest at its
// place.
struct PromptLogProbs {
  std::vector<float> log_probs;
  std::vector<TokenLogProb> top;
};

// How many of the likeliest come with a token at most, as OpenAI and vLLM have it.
inline constexpr int kMostTopLogProbs = 20;

// What is kept of drafted tokens when tokens are sampled (section 3 of docs/design.md).
enum class SpecSampling : std::uint8_t {
  kRejection,  // the output has exactly the target's distribution
  kCoupled,    // the output is that of plain sampling with the same seed, token for token
};

}  // namespace quantspec
