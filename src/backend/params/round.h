// Rounds (section 4 of docs/design.md): what ops know of the sequences that choose tokens. Pointers
// are to the backend's memory. Plain data, no behaviour.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/params/limits.h"
#include "base/token.h"
#include "sampler/sampling_params.h"

namespace quantspec {

// How the tokens of a sequence are chosen.
struct TokenRule {
  SamplingParams sampling;
  SpecSampling mode = SpecSampling::kRejection;
  // For measurements of speed alone, on weights that mean nothing: drafted tokens are accepted with
  // this probability whatever the target says. Negative: they are judged.
  float simulated_acceptance = -1.0f;
  int prompt_length = 0;  // tokens at positions from there on were chosen
  // In the backend's memory: LogitBiases::always, and then an addition of -infinity for each of its
  // ends, which are left out once min_tokens were chosen.
  const LogitBias* biases = nullptr;
  int num_biases = 0;
  int num_ends = 0;
  int min_tokens = 0;

  // Of the token at `position`.
  constexpr int biases_at(int position) const {
    return position - prompt_length < min_tokens ? num_biases + num_ends : num_biases;
  }
  // Greedy decoding that leaves logits as they are needs no distribution, only the largest of them.
  bool by_argmax() const { return sampling.greedy() && !edits_logits(); }
  constexpr bool edits_logits() const { return sampling.penalizes() || num_biases + num_ends > 0; }
};

// Where a sequence's round stands, in the backend's memory.
struct Round {
  int length;   // tokens that are chosen, the pending one included
  int drafted;  // tokens after them that the draft proposed
  // Of the last round that was judged:
  int accepted;                     // of the drafted tokens, from the first
  TokenId added[kMaxDraftLen + 1];  // those accepted, and the target's own
  TokenId rejected[kMaxDraftLen];   // the drafted tokens after those that were accepted
  int status;                       // what went wrong; the backend's business (end_round)
  // Between the parts of an op; the backend's business.
  int arrived;
  TokenId judged[kMaxDraftLen + 1];
};

// A sequence that chooses tokens. tokens[position], of which round->length + round->drafted are
// known; room for kMaxDraftLen + 1 more.
struct RoundTokens {
  const TokenRule* rule;
  bool by_argmax;  // as the rule says
  TokenId* tokens;
  Round* round;
  int vocab_size;
  bool operator==(const RoundTokens&) const = default;
};

// A sequence of a round; of an empty lane, which has no rows, only first_row counts.
struct RoundLane {
  RoundTokens at;
  int draft_len = -1;  // so many tokens are drafted, draft_len + 1 verified; -1: the lane is empty
  int first_row = 0;   // of verification, among the batch's, in the order of lanes
  // Where its token at depth d is drafted from logits: draft_probs + d * draft_stride. What
  // propose() leaves there is needed to judge, unless the rule goes by argmax.
  const float* draft_probs = nullptr;
  std::ptrdiff_t draft_stride = 0;
  // The drafted tokens are there already: no pass draws them. As they have no probabilities, they
  // are accepted as long as the target draws the same by coupled sampling, whatever the rule says:
  // with the probability that it gives them, and what it draws instead has the distribution of the
  // rest.
  bool proposed = false;

  constexpr int rows() const { return draft_len + 1; }
  // Passes that draw a token of it; -1: the lane is empty.
  constexpr int drafts() const { return proposed && draft_len > 0 ? 0 : draft_len; }
  bool operator==(const RoundLane&) const = default;
};

// What a lane reads follows from it: equal ones read the same memory, in as many places.
struct LaneKey {
  std::uint64_t sequence = 0;  // different for sequences that ever lived; 0: the lane is empty
  int plan = -1;               // of the sequence's, by which it drafts; -1: it does not
  std::uint64_t variant = 0;   // whatever else distinguishes them
  bool operator==(const LaneKey&) const = default;
};

// For the lanes [first_lane, first_lane + count) of which more than `depth` passes draw: appends to
// the drafted ones what the lane's row proposes. Unless the rule needs no distribution, the logits
// become that which was drawn from.
struct ProposeParams {
  int first_lane;
  int count;
  int depth;
  float* logits;  // [count, vocab_size]
};

// Judges the drafted tokens of lanes: appends those that are accepted and the target's own; the
// round's length grows, and nothing is drafted. The target's logits may become its distributions.
struct JudgeParams {
  int first_lane;
  int count;
  float* target_logits;  // [rows of these lanes, vocab_size]
};

// What the ops of a round depend on beside the shape of the batch, which the backend knows, and
// what lies in its memory.
struct RoundKey {
  std::uint64_t issuer;  // who issues, different for all that ever lived
  int draft_plan;        // a number for each plan; -1: nothing is drafted
  int target_plan;
  bool keeps_drafts;  // each depth has logits of its own
  bool keeps_logits;  // there is a copy of the target's
  int contexts = 0;   // how long they are, as kernels go by it: BatchLengths::key()
  bool operator==(const RoundKey&) const = default;
};

// Points in time of a round.
enum class Mark : std::uint8_t { kBegin, kDrafted, kEnd };
inline constexpr int kNumMarks = 3;

}  // namespace quantspec
