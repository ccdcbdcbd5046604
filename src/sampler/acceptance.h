// Which drafted tokens are kept, and the one token that the target adds: the statement of what
// "speculation changes nothing" means for sampling (section 3 of docs/design.md).
//
// Greedy decoding needs no case of its own: its distributions have all their mass on one token
// (to_probabilities in sampler/), for which both modes reduce to "accept while they agree". Plain
// decoding is a round with no drafted tokens.
//
// Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/random.h"
#include "base/token.h"
#include "sampler/sampling_params.h"

namespace quantspec {

// Distributions of consecutive positions: [rows, vocab_size].
struct ProbsView {
  const float* data;
  int rows;
  int vocab_size;
  std::ptrdiff_t stride = vocab_size;  // from row to row

  std::span<const float> row(int i) const {
    return {data + i * stride, static_cast<std::size_t>(vocab_size)};
  }
};

struct Acceptance {
  int accepted;  // of the drafted tokens, from the first
  TokenId next;  // the target's own: a correction, or a bonus when all were accepted
  bool operator==(const Acceptance&) const = default;
};

// The draft's proposal for `position`, from its distribution there.
TokenId draft_token(SpecSampling mode, std::span<const float> draft_probs, const CounterRng& rng,
                    std::int64_t position);

// drafted: g tokens for positions first_position + i, drafted[i] from draft_token() on row i of
// draft_probs. target_probs: g + 1 rows, row i the target's distribution at first_position + i
// given drafted[0..i-1]. draft_probs: g rows, read by kRejection only (for kCoupled it may be
// empty: {nullptr, 0, 0}).
Acceptance accept(SpecSampling mode, ProbsView draft_probs, ProbsView target_probs,
                  std::span<const TokenId> drafted, const CounterRng& rng,
                  std::int64_t first_position);

// The rule of greedy and of coupled sampling: the longest agreeing run. target_choice[i] is the
// token that the target chooses at position i of the round, g + 1 of them. For callers that have
// the choices and no distributions (greedy by argmax alone).
Acceptance accept_matching(std::span<const TokenId> drafted,
                           std::span<const TokenId> target_choice);

}  // namespace quantspec
