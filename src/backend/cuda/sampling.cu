// Choosing tokens: argmax of logits, draws from distributions, and what a round accepts.
#include <algorithm>

#include "backend/cuda/sampling.h"
#include "backend/cuda/sampling_draw.cuh"
#include "backend/cuda/sampling_launch.cuh"
#include "backend/cuda/sampling_logits.cuh"
#include "base/error.h"
#include "base/fields.h"

namespace quantspec::cuda {

namespace {

constexpr TokenId kPasses = -1;  // judged: the drafted token is accepted

// --- what becomes of a chosen token --------------------------------------------------------------

__device__ void append_drafted(const RoundTokens& at, int length, int drafted, TokenId token) {
  at.tokens[length + drafted] = token;
  at.round->drafted = drafted + 1;
}

// Ends the round: the tokens up to the first row that did not pass. Row `drafted` never does. By
// one warp.
__device__ void commit(const RoundTokens& at, int rows, int length) {
  Round& round = *at.round;
  const int lane = lane_id();
  const TokenId judged = lane < rows ? __ldcg(&round.judged[lane]) : kPasses;
  const int accepted = __ffs(__ballot_sync(~0u, judged != kPasses)) - 1;
  if (lane < accepted) round.added[lane] = at.tokens[length + lane];
  if (lane >= accepted && lane < rows - 1)
    round.rejected[lane - accepted] = at.tokens[length + lane];
  if (lane != accepted) return;
  round.added[accepted] = judged;
  at.tokens[length + accepted] = judged;
  round.accepted = accepted;
  round.length = length + accepted + 1;
  round.drafted = 0;
  round.arrived = 0;
}

// The judgement of a row, by one warp; the last of all rows commits. REQUIRES: no block of the row
// reads `round` afterwards.
__device__ void arrive(const RoundTokens& at, int row, int rows, int length, TokenId judged) {
  Round& round = *at.round;
  bool last = false;
  if (lane_id() == 0) {
    round.judged[row] = judged;
    __threadfence();
    last = atomicAdd(&round.arrived, 1) == rows - 1;
    __threadfence();
  }
  if (__shfl_sync(~0u, last, 0)) commit(at, rows, length);
}

// Whether a drafted token is accepted: where acceptance is simulated by chance, else `judged`.
__device__ bool passes(const TokenRule& rule, std::int64_t position, bool judged) {
  if (rule.simulated_acceptance < 0) return judged;
  const CounterRng rng(rule.sampling.seed);
  return rng.uniform(position, RandomStream::kAccept) < rule.simulated_acceptance;
}

// The rule of greedy and coupled sampling: a drafted token passes if the target chooses the same.
__device__ TokenId match(const RoundTokens& at, int row, int drafted, int length, TokenId choice) {
  if (row == drafted) return choice;
  const int position = length + row;
  return passes(*at.rule, position, at.tokens[position] == choice) ? kPasses : choice;
}

// --- argmax --------------------------------------------------------------------------------------

__device__ Largest largest_in_row(RowBlocks& blocks, const float* logits, int vocab_size) {
  ThreadLargest seen;
  const int quadruples = reinterpret_cast<std::uintptr_t>(logits) % 16 == 0 ? vocab_size / 4 : 0;
#pragma unroll 8
  for (int i = blocks.thread(); i < quadruples; i += blocks.threads()) {
    const float4 four = reinterpret_cast<const float4*>(logits)[i];
    seen.see(four.x, 4 * i);
    seen.see(four.y, 4 * i + 1);
    seen.see(four.z, 4 * i + 2);
    seen.see(four.w, 4 * i + 3);
  }
  for (int i = 4 * quadruples + blocks.thread(); i < vocab_size; i += blocks.threads()) {
    seen.see(logits[i], i);
  }
  return largest_of(blocks.largest(seen.key()));
}

__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    argmax_kernel(const float* logits, int vocab_size, TokenId* chosen, int* status) {
  __shared__ RowExchange exchange;
  RowBlocks blocks(exchange);
  const int row = blocks.row();
  const Largest largest =
      largest_in_row(blocks, logits + static_cast<std::size_t>(row) * vocab_size, vocab_size);
  if (blocks.thread() != 0) return;
  raise_status(status, largest.status);
  chosen[row] = largest.token;
}

__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    draft_argmax_kernel(LaneTable table, int depth, const float* logits) {
  __shared__ RowExchange exchange;
  RowBlocks blocks(exchange);
  const RoundLane& lane = table.lanes[blocks.row()];
  const RoundTokens at = lane.at;
  if (lane.drafts() <= depth || !at.by_argmax) return;
  logits += static_cast<std::size_t>(blocks.row()) * at.vocab_size;
  const int drafted = at.round->drafted, length = at.round->length;
  const Largest largest = largest_in_row(blocks, logits, at.vocab_size);
  if (blocks.thread() != 0) return;
  raise_status(&at.round->status, largest.status);
  append_drafted(at, length, drafted, largest.token);
}

__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    accept_argmax_kernel(LaneTable table, const float* logits) {
  __shared__ RowExchange exchange;
  RowBlocks blocks(exchange);
  const auto [lane, row] = LaneRow::of(table, blocks.row());
  if (lane == nullptr || !lane->at.by_argmax) return;
  const RoundTokens at = lane->at;
  const int rows = lane->draft_len + 1;
  logits += static_cast<std::size_t>(blocks.row()) * at.vocab_size;
  const int drafted = at.round->drafted, length = at.round->length;
  if (row > drafted) {
    if (blocks.thread() < 32) arrive(at, row, rows, length, kPasses);
    return;
  }
  const Largest largest = largest_in_row(blocks, logits, at.vocab_size);
  if (blocks.thread() >= 32) return;
  if (lane_id() == 0) raise_status(&at.round->status, largest.status);
  arrive(at, row, rows, length, match(at, row, drafted, length, largest.token));
}

// --- draws ---------------------------------------------------------------------------------------

// draft_token() of speculative/.
__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    draft_token_kernel(LaneTable table, int depth, const float* probs) {
  __shared__ RowExchange exchange;
  __shared__ double bands[kMostBands];
  RowBlocks blocks(exchange);
  const RoundLane& lane = table.lanes[blocks.row()];
  const RoundTokens at = lane.at;
  if (lane.drafts() <= depth || at.by_argmax) return;
  probs += static_cast<std::size_t>(blocks.row()) * at.vocab_size;
  const TokenRule& rule = *at.rule;
  const CounterRng rng(rule.sampling.seed);
  const int drafted = at.round->drafted, length = at.round->length;
  const std::int64_t position = length + drafted;
  if (rule.mode == SpecSampling::kCoupled) {
    const TokenId token = race(blocks, probs, at.vocab_size, rng, position);
    if (blocks.thread() == 0) append_drafted(at, length, drafted, max(token, 0));
    return;
  }
  const auto weight = [&](int i) { return probs[i]; };
  Draw draw(blocks, bands, at.vocab_size);
  const double sum = draw.weigh(weight);
  const double left = rng.uniform(position, RandomStream::kDraft) * sum;
  const TokenId token = draw.token(weight, left);
  if (token >= 0 && lane_id() == 0) append_drafted(at, length, drafted, token);
}

// A row of the target's that ends the round: the token to take instead of the drafted one, drawn
// from what the target has more of than the draft (others), or after all of them (others null).
// For warp 0 of one block; -1 for all others.
__device__ TokenId draw_excess(RowBlocks& blocks, double* bands, int vocab_size, const float* probs,
                               const float* others, float uniform) {
  Draw draw(blocks, bands, vocab_size);
  if (others != nullptr) {
    const auto excess = [&](int i) {
      const float more = probs[i] - others[i];
      return more > 0 ? more : 0.0f;
    };
    const double sum = draw.weigh(excess);
    if (sum > 0) return draw.token(excess, uniform * sum);
  }
  const auto weight = [&](int i) { return probs[i]; };
  const double sum = draw.weigh(weight);
  return draw.token(weight, uniform * sum);
}

// accept() of speculative/: every row is judged for itself, as if the round had come to it.
__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    accept_kernel(LaneTable table, const float* target) {
  __shared__ RowExchange exchange;
  __shared__ double bands[kMostBands];
  RowBlocks blocks(exchange);
  const auto [lane, row] = LaneRow::of(table, blocks.row());
  if (lane == nullptr || lane->at.by_argmax) return;
  const RoundTokens at = lane->at;
  const int rows = lane->draft_len + 1;
  target += static_cast<std::size_t>(blocks.row()) * at.vocab_size;
  const int drafted = at.round->drafted, length = at.round->length;
  const int vocab_size = at.vocab_size;
  if (row > drafted) {
    if (blocks.thread() < 32) arrive(at, row, rows, length, kPasses);
    return;
  }
  const TokenRule& rule = *at.rule;
  const CounterRng rng(rule.sampling.seed);
  const std::int64_t position = length + row;

  if (rule.mode == SpecSampling::kCoupled || lane->proposed) {
    const TokenId choice = max(race(blocks, target, vocab_size, rng, position), 0);
    if (blocks.thread() >= 32) return;
    arrive(at, row, rows, length, match(at, row, drafted, length, choice));
    return;
  }

  const bool bonus = row == drafted;
  const float* const draft = bonus ? nullptr : lane->draft_probs + row * lane->draft_stride;
  if (!bonus) {
    const TokenId token = at.tokens[position];
    const float draft_prob = draft[token];
    // Accepts with probability min(1, target / draft); the product is exact in double.
    const double uniform = rng.uniform(position, RandomStream::kAccept);
    const bool passed = passes(rule, position, uniform * draft_prob < target[token]);
    if (!(draft_prob > 0) && blocks.thread() == 0) {
      raise_status(&at.round->status, SamplingStatus::kImpossibleDraft);
    }
    blocks.sync();  // all have read what the round's last row changes
    if (passed) {
      if (blocks.thread() < 32) arrive(at, row, rows, length, kPasses);
      return;
    }
  }
  const float uniform =
      rng.uniform(position, bonus ? RandomStream::kSample : RandomStream::kResidual);
  const TokenId token = draw_excess(blocks, bands, vocab_size, target, draft, uniform);
  if (token >= 0) arrive(at, row, rows, length, token);
}

__global__ void random_words_kernel(std::uint64_t seed, std::int64_t position, RandomStream stream,
                                    int count, std::uint32_t* words, float* variates) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  words[i] = CounterRng(seed).bits(position, stream, i);
  variates[i] = exponential(words[i]);
}

// --- host ----------------------------------------------------------------------------------------

void check_draws(const Device& device, const LaneTable& lanes) {
  check(bands_per_block(lanes.vocab_size, row_blocks(device)) <= kMostBands,
        "a draw on the GPU is from 262144 tokens at most, from 2097152 on 9.0 and later");
}

// Whether some lane's rule has this need.
bool any_lane(const Device& device, int first, int count, bool by_argmax) {
  return std::ranges::any_of(device.lanes().subspan(first, count), [&](const RoundLane& lane) {
    return lane.rows() > 0 && lane.at.by_argmax == by_argmax;
  });
}

}  // namespace

void require_chosen(int status, int vocab_size) {
  switch (static_cast<SamplingStatus>(status)) {
    case SamplingStatus::kGood:
      return;
    case SamplingStatus::kImpossibleDraft:
      fail(ErrorKind::kInternal, "a drafted token comes from the draft's distribution");
    case SamplingStatus::kNoToken:
      fail(ErrorKind::kCorruptFile, "all {} logits are -infinity; no token can be chosen",
           vocab_size);
    case SamplingStatus::kNotANumber:
      fail(ErrorKind::kCorruptFile,
           "the model produced a logit that is NaN or infinite; nothing can be sampled from it "
           "(check the checkpoint for NaN weights, or try another {})",
           field::kBackend);
  }
}

void propose(Device& device, const ProposeParams& params) {
  const LaneTable lanes = device.lane_table(params.first_lane, params.count);
  if (any_lane(device, params.first_lane, params.count, true)) {
    draft_argmax(device, lanes, params.depth, params.logits);
  }
  if (any_lane(device, params.first_lane, params.count, false)) {
    draft_distribution(device, lanes, params.depth, params.logits);
    draft_token(device, lanes, params.depth, params.logits);
  }
}

void judge(Device& device, const JudgeParams& params) {
  const LaneTable lanes = device.lane_table(params.first_lane, params.count);
  const RoundLane& last = device.lanes()[params.first_lane + params.count - 1];
  const int rows = padded_rows_of(params.count, last.first_row + last.rows() - lanes.first_row);
  if (any_lane(device, params.first_lane, params.count, true)) {
    accept_argmax(device, lanes, params.target_logits, rows);
  }
  if (any_lane(device, params.first_lane, params.count, false)) {
    target_distributions(device, lanes, params.target_logits, rows);
    accept(device, lanes, params.target_logits, rows);
  }
}

void argmax_rows(Device& device, const float* logits, int rows, int vocab_size, TokenId* chosen,
                 int* status) {
  launch_rows(device, argmax_kernel, rows, 0, logits, vocab_size, chosen, status);
}

void draft_argmax(Device& device, const LaneTable& lanes, int depth, const float* logits) {
  launch_rows(device, draft_argmax_kernel, lanes.count, 0, lanes, depth, logits);
}

void draft_token(Device& device, const LaneTable& lanes, int depth, const float* probs) {
  check_draws(device, lanes);
  launch_rows(device, draft_token_kernel, lanes.count, 0, lanes, depth, probs);
}

void accept(Device& device, const LaneTable& lanes, const float* target_probs, int rows) {
  check_draws(device, lanes);
  launch_rows(device, accept_kernel, rows, 0, lanes, target_probs);
}

void accept_argmax(Device& device, const LaneTable& lanes, const float* target_logits, int rows) {
  launch_rows(device, accept_argmax_kernel, rows, 0, lanes, target_logits);
}

void random_words(Device& device, std::uint64_t seed, std::int64_t position, RandomStream stream,
                  int count, std::uint32_t* words, float* variates) {
  const int blocks = (count + kRowThreads - 1) / kRowThreads;
  random_words_kernel<<<blocks, kRowThreads, 0, device.stream()>>>(seed, position, stream, count,
                                                                   words, variates);
  require_launch("random_words");
}

}  // namespace quantspec::cuda
