// to_probabilities() of sampler/ for rows of logits, in place: biases and penalties,
// softmax, top-k, top-p, min-p. Each row by a cluster whose blocks hold it in shared memory from
// the first step to the last.
#include <algorithm>

#include "backend/cuda/sampling.h"
#include "backend/cuda/sampling_launch.cuh"
#include "backend/cuda/sampling_logits.cuh"
#include "backend/cuda/sampling_select.cuh"
#include "base/exponential.h"
#include "sampler/parameters.h"

namespace quantspec::cuda {

namespace {

// All that these kernels, and those of sampling.cu, go by.
static_assert(are_all_sampling_params<
              &SamplingParams::temperature, &SamplingParams::top_k, &SamplingParams::top_p,
              &SamplingParams::min_p, &SamplingParams::repeat_penalty,
              &SamplingParams::repeat_last_n, &SamplingParams::presence_penalty,
              &SamplingParams::frequency_penalty, &SamplingParams::seed>());

constexpr float kLargestFloat = 3.402823466e38f;

struct DistributionMemory {
  RowExchange exchange;
  SelectMemory select;
};

// Calls visit(logit) for each of the ids that is of the part.
template <typename Visit>
__device__ void for_each_of_part(const TokenId* ids, int count, int first_token, RowPart part,
                                 Visit visit) {
  for (int i = threadIdx.x; i < count; i += kRowThreads) {
    const int index = ids[i] - first_token;
    if (index >= 0 && index < part.count) visit(part.values[index], index);
  }
}

// The same for each distinct one, once: who sets its bit does it. A __syncthreads() at both ends.
template <typename Visit>
__device__ void for_each_distinct(const TokenId* ids, int count, int first_token, RowPart part,
                                  std::uint32_t* met, Visit visit) {
  for (int i = threadIdx.x; 32 * i < part.count; i += kRowThreads) met[i] = 0;
  __syncthreads();
  for_each_of_part(ids, count, first_token, part, [&](float& logit, int index) {
    const std::uint32_t bit = 1u << (index % 32);
    if (!(atomicOr(&met[index / 32], bit) & bit)) visit(logit);
  });
  __syncthreads();
}

// Biases and penalties, in the order of sampler/. Where several threads add to one logit, they add
// the same or one of them -infinity, so that their order does not matter.
__device__ void edit_logits(const TokenRule& rule, const TokenId* tokens, int position,
                            int first_token, RowPart part, std::uint32_t* met) {
  const SamplingParams& sampling = rule.sampling;
  __syncthreads();  // all have their part of the row
  for (int i = threadIdx.x; i < rule.biases_at(position); i += kRowThreads) {
    const int index = rule.biases[i].id - first_token;
    if (index >= 0 && index < part.count) atomicAdd(&part.values[index], rule.biases[i].add);
  }
  __syncthreads();
  if (sampling.penalizes_repeats()) {
    const int last = sampling.repeat_last_n < 0 ? position : min(sampling.repeat_last_n, position);
    for_each_distinct(tokens + position - last, last, first_token, part, met, [&](float& logit) {
      logit = logit > 0 ? logit / sampling.repeat_penalty : logit * sampling.repeat_penalty;
    });
  }
  if (sampling.penalizes_counts()) {
    const TokenId* const chosen = tokens + rule.prompt_length;
    const int count = position - rule.prompt_length;
    for_each_distinct(chosen, count, first_token, part, met,
                      [&](float& logit) { logit -= sampling.presence_penalty; });
    for_each_of_part(chosen, count, first_token, part,
                     [&](float& logit, int) { atomicAdd(&logit, -sampling.frequency_penalty); });
    __syncthreads();
  }
}

// exp((logits - most) / temperature) in place; the inverse of their sum. REQUIRES: temperature > 0.
__device__ float weigh(RowBlocks& blocks, RowPart part, float most, float temperature) {
  const float inverse = fminf(1.0f / temperature, kLargestFloat);
  double sum = 0;
  part.update([&](float& value, int) {
    const float scaled = (value - most) * inverse;
    value = exp_negative(scaled > kLowestExponent ? scaled : kLowestExponent);
    sum += value;
  });
  return static_cast<float>(1.0 / blocks.sum(sum));
}

__device__ double mass(RowBlocks& blocks, RowPart part) {
  double sum = 0;
  part.read([&](float prob, int) { sum += prob; });
  return blocks.sum(sum);
}

// Makes 0 what top-k, top-p and min-p remove. most: the largest of the probabilities.
__device__ void keep_top(const SamplingParams& sampling, RowBlocks& blocks, SelectMemory& memory,
                         RowPart part, float most, int vocab_size) {
  const bool by_count = sampling.top_k > 0 && sampling.top_k < vocab_size;
  if (by_count) {
    Selection<CountWeight>(blocks, memory, part).keep(sampling.top_k, 0.0f);
  }
  if (sampling.top_p < 1) {
    // Without top-k: as the CPU, which never looks at tokens below the floor.
    const float floor =
        by_count ? 0.0f : 0.5f * (1.0f - sampling.top_p) / static_cast<float>(vocab_size);
    const double all = by_count ? mass(blocks, part) : 1.0;
    Selection<MassWeight>(blocks, memory, part).keep(sampling.top_p * all, floor);
  }
  if (sampling.min_p > 0) {
    const float floor = sampling.min_p * most;
    part.update([&](float& prob, int) {
      if (!(prob >= floor)) prob = 0;
    });
  }
}

// depth: of drafts; the target's rows: -1. kStaged: the row's parts are in shared memory, [part]
// floats; else they stay where they are. Then, dynamic shared memory too: a bit per token of the
// part.
template <bool kStaged>
__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    distribution_kernel(LaneTable table, int depth, float* rows, int part_size) {
  __shared__ DistributionMemory memory;
  extern __shared__ float4 dynamic[];
  RowBlocks blocks(memory.exchange);
  const bool draft = depth >= 0;
  const auto [lane, row] =
      draft ? LaneRow{table.lanes + blocks.row(), 0} : LaneRow::of(table, blocks.row());
  if (lane == nullptr || lane->drafts() <= depth || lane->at.by_argmax) return;
  const RoundTokens at = lane->at;
  const int vocab_size = at.vocab_size;
  if (!draft && row > at.round->drafted) return;
  const int position = at.round->length + (draft ? at.round->drafted : row);
  const TokenRule rule = *at.rule;
  const SamplingParams& sampling = rule.sampling;

  const int first = blocks.rank() * part_size;
  const int count = max(0, min(part_size, vocab_size - first));
  float* const out = rows + static_cast<std::size_t>(blocks.row()) * vocab_size + first;
  RowPart part{out, count};
  ThreadLargest seen;
  const auto see = [&](float logit, int i) { seen.see(logit, first + i); };
  if constexpr (kStaged) {
    part.values = reinterpret_cast<float*>(dynamic);
    copy_part(part.values, {out, count}, see);
  } else {
    part.read(see);
  }
  if (rule.edits_logits()) {
    auto* const met = reinterpret_cast<std::uint32_t*>(dynamic) + (kStaged ? part_size : 0);
    edit_logits(rule, at.tokens, position, first, part, met);
    seen = {};
    part.read(see);
  }
  const Largest largest = largest_of(blocks.largest(seen.key()));
  if (blocks.thread() == 0) raise_status(&at.round->status, largest.status);
  if (largest.status != SamplingStatus::kGood || sampling.temperature == 0) {
    RowPart{out, count}.update(
        [&](float& value, int i) { value = first + i == largest.token ? 1.0f : 0.0f; });
    return;
  }

  float scale = weigh(blocks, part, largest.logit, sampling.temperature);
  const bool by_count = sampling.top_k > 0 && sampling.top_k < vocab_size;
  if (by_count || sampling.top_p < 1 || sampling.min_p > 0) {
    part.update([&](float& value, int) { value *= scale; });
    keep_top(sampling, blocks, memory.select, part, scale, vocab_size);
    scale = static_cast<float>(1.0 / mass(blocks, part));
  }
  scale_part(out, part, scale);
}

// A part of a row in whole quadruples, so that they can be copied as such.
int part_size(int vocab_size, int blocks) {
  const int part = (vocab_size + blocks - 1) / blocks;
  return (part + 31) / 32 * 32;
}

void distributions(Device& device, const LaneTable& lanes, int depth, float* logits, int rows) {
  const int part = part_size(lanes.vocab_size, row_blocks(device));
  const std::size_t bits = part / 32 * sizeof(std::uint32_t);
  const std::size_t staged = bits + part * sizeof(float);
  const bool fits = staged + sizeof(DistributionMemory) + 1024 <= device.max_shared_bytes();
  const auto kernel = fits ? distribution_kernel<true> : distribution_kernel<false>;
  launch_rows(device, kernel, rows, fits ? staged : bits, lanes, depth, logits, part);
}

}  // namespace

void draft_distribution(Device& device, const LaneTable& lanes, int depth, float* logits) {
  distributions(device, lanes, depth, logits, lanes.count);
}

void target_distributions(Device& device, const LaneTable& lanes, float* logits, int rows) {
  distributions(device, lanes, -1, logits, rows);
}

}  // namespace quantspec::cuda
