// From logits to tokens without the host: the distributions of sampler/ and the acceptance rules of
// speculative/ over rows of logits in device memory. All on the device's stream, and nothing waits;
// what changes from round to round lies in device memory, so that a captured round can be replayed.
//
// A round: `draft_len` times a pass over the last token and propose(), one pass over the pending
// token and all drafted ones, and judge(). Plain decoding drafts nothing. A draft's row stands at
// position length + drafted of the round, row i of the target's at length + i: it is the
// distribution of the token there, and what lies before in `tokens` is its history.
//
// What is guaranteed against the CPU's functions:
//   argmax, matching          the same tokens.
//   random words and variates the same bits.
//   coupled choices           the same token from the same probabilities.
//   inverse CDF               the same token from the same probabilities, but where uniform * sum
//                             lies within 1e-12 * sum of the border of two tokens: sums are in
//                             double, those of 256 tokens the CPU's bits, the rest added in
//                             another order.
//   distributions             the same operations, in fp32 the same bits, on the logits; their sum,
//                             in double, is added in another order, which changes its fp32 inverse
//                             once in 1e7. Top-k keeps the same tokens of the same probabilities;
//                             top-p does but where a partial sum lies within 1e-12 of the share.
// A row's bits do not depend on the rows beside it: each is worked on by one cluster of blocks
// whose size is the machine's.
#pragma once

#include <cstdint>

#include "backend/cuda/device.h"
#include "backend/params/round.h"
#include "base/random.h"

namespace quantspec::cuda {

// --- ops -----------------------------------------------------------------------------------------

void propose(Device& device, const ProposeParams& params);
// Of a lane, rows after the drafted ones are left alone.
void judge(Device& device, const JudgeParams& params);

// Round::status: what went wrong, of several the largest; it stays until the host clears it. Tokens
// chosen since are ids of the vocabulary and mean nothing.
enum class SamplingStatus : int {
  kGood,
  kImpossibleDraft,  // a drafted token has probability 0 in the draft's distribution
  kNoToken,          // all logits are -infinity
  kNotANumber,       // a logit is NaN or +infinity
};
// Throws the Error that the CPU's functions throw there.
void require_chosen(int status, int vocab_size);

// --- their parts ---------------------------------------------------------------------------------

// Those that draft take a row of every lane, and work on those that draft more than `depth` tokens;
// the others `rows` rows, the lanes' one after the other and any number behind them. Those by
// argmax work on lanes whose rule needs no more, the others on the others.

// to_probabilities(), in place: of a draft's row, of the target's rows 0 .. drafted.
void draft_distribution(Device& device, const LaneTable& lanes, int depth, float* logits);
void target_distributions(Device& device, const LaneTable& lanes, float* logits, int rows);

// Appends to the drafted tokens: draft_token() of a distribution, or the argmax of logits.
void draft_token(Device& device, const LaneTable& lanes, int depth, const float* probs);
void draft_argmax(Device& device, const LaneTable& lanes, int depth, const float* logits);

// accept() of distributions, or accept_matching() of the argmax of every row of logits; commits.
void accept(Device& device, const LaneTable& lanes, const float* target_probs, int rows);
void accept_argmax(Device& device, const LaneTable& lanes, const float* target_logits, int rows);

// The id of the largest of each row, the lowest on ties. logits: [rows, vocab_size]. `status` as
// Round::status.
void argmax_rows(Device& device, const float* logits, int rows, int vocab_size, TokenId* chosen,
                 int* status);

// What kernels see of base/random.h and base/exponential.h, for tests: words 0 .. count - 1 of
// (seed, position, stream), and exponential() of each.
void random_words(Device& device, std::uint64_t seed, std::int64_t position, RandomStream stream,
                  int count, std::uint32_t* words, float* variates);

}  // namespace quantspec::cuda
