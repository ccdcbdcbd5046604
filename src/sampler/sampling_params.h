// How tokens are chosen, as requests say it: plain data (parameters.h has the bounds).
#pragma once

#include <cstdint>

namespace quantspec {

struct SamplingParams {
  float temperature = 1.0f;     // 0: greedy
  int top_k = 0;                // 0: off
  float top_p = 1.0f;           // 1: off
  float min_p = 0.0f;           // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  int repeat_last_n = 64;       // tokens of history that the penalty looks at; -1: all
  std::uint64_t seed = 0;

  bool greedy() const { return temperature == 0.0f; }
  bool penalizes() const { return repeat_penalty != 1.0f && repeat_last_n != 0; }
  // Throws Error(kInvalidRequest) naming the parameter and its valid range.
  void validate() const;
};

// What is kept of drafted tokens when tokens are sampled (section 3 of docs/design.md).
enum class SpecSampling : std::uint8_t {
  kRejection,  // the output has exactly the target's distribution
  kCoupled,    // the output is that of plain sampling with the same seed, token for token
};

}  // namespace quantspec
