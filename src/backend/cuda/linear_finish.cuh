// The last step of the kernel of linear_kernel.cuh: from the sums of all slices to what an op
// wants.
#pragma once

#include "backend/cuda/linear_stream.cuh"

namespace quantspec::cuda {

// The sums of all slices, in shared memory of the cluster.
struct Sums {
  const float* of_block;  // [block_slices, rows, width], this block's
  const float* factors;   // [rows]; null: 1
  int rows, width;
  int row_shift;  // log2 of the blocks

  // Over all slices, in order.
  __device__ float at(int row, int output) const {
    const int rank_shift = 3 - row_shift;  // slices of a block
    const std::uint32_t here = shared_address(of_block + row * width + output);
    float parts[kSlices];
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const int rank = slice >> rank_shift, of_rank = slice - (rank << rank_shift);
      parts[slice] = load_cluster(here + of_rank * rows * width * 4, rank);
    }
    float sum = parts[0];
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) sum += parts[slice];
    return factors == nullptr ? sum : sum * factors[row];
  }
};
static_assert(kSlices == 8);

// Element i of those that a block finishes, [its rows, per_row].
struct OwnRow {
  int row, i;
  // row_shift: log2 of per_row
  __device__ OwnRow(const LinearArgs& args, const WarpRole& role, int i, int row_shift)
      : row(role.rank + (i >> row_shift << args.row_shift)), i(i & ((1 << row_shift) - 1)) {}
};

// kStore, kAdd: what element i is added to. Read ahead of the sums, so that it does not cost the
// end of the kernel a trip to memory.
__device__ __forceinline__ float plain_base(const LinearArgs& args, const WarpRole& role, int block,
                                            int i) {
  const int width = args.block_tiles * kTileRows;
  const OwnRow own(args, role, i, args.row_shift + 5);
  const int output = block * width + own.i, outputs = args.sources[0].outputs;
  if (own.row >= args.num_rows || output >= outputs) return 0.0f;
  float base = args.sources[0].bias != nullptr ? args.sources[0].bias[output] : 0.0f;
  if (args.op == LinearOp::kAdd) {
    base +=
        __ldcg(args.out + static_cast<std::size_t>(args.first_row + own.row) * outputs + output);
  }
  return base;
}

__device__ __forceinline__ void finish_plain(const LinearArgs& args, const WarpRole& role,
                                             int block, const Sums& sums, float base) {
  const int width = args.block_tiles * kTileRows, outputs = args.sources[0].outputs;
#pragma unroll 1
  for (int i = threadIdx.x;; i += kLinearThreads) {
    const OwnRow own(args, role, i, args.row_shift + 5);
    if (own.row >= args.num_rows) return;
    const int output = block * width + own.i;
    const float next = plain_base(args, role, block, i + kLinearThreads);
    if (output < outputs) {
      args.out[static_cast<std::size_t>(args.first_row + own.row) * outputs + output] =
          sums.at(own.row, own.i) + base;
    }
    base = next;
  }
}

__device__ __forceinline__ void finish_gate_up(const LinearArgs& args, const WarpRole& role,
                                               int block, const Sums& sums) {
  const int half = args.block_tiles / 2 * kTileRows, outputs = args.sources[0].outputs;
#pragma unroll 1
  for (int i = threadIdx.x;; i += kLinearThreads) {
    const OwnRow own(args, role, i, args.row_shift + 4);
    if (own.row >= args.num_rows) return;
    const int output = block * half + own.i;
    if (output >= outputs) continue;
    float gate = sums.at(own.row, own.i), up = sums.at(own.row, half + own.i);
    if (args.sources[0].bias != nullptr) gate += args.sources[0].bias[output];
    if (args.sources[1].bias != nullptr) up += args.sources[1].bias[output];
    args.out[static_cast<std::size_t>(args.first_row + own.row) * outputs + output] =
        gate / (1.0f + expf(-gate)) * up;
  }
}

// Where K or V of an activation row goes; null: nowhere. All lanes of a warp.
__device__ __forceinline__ __half* full_kv_row(const QkvArgs& qkv, int row, int kv_head,
                                               int which) {
  const int lane = threadIdx.x % 32;
  SequenceState state{};
  if (lane < qkv.num_sequences) {
    state.first_row = __ldcg(&qkv.states[lane].first_row);
    state.num_rows = __ldcg(&qkv.states[lane].num_rows);
    state.first_position = __ldcg(&qkv.states[lane].first_position);
  }
  const unsigned at =
      __ballot_sync(~0u, row >= state.first_row && row < state.first_row + state.num_rows);
  if (at == 0) return nullptr;
  const int sequence = __ffs(at) - 1;
  const int position = __shfl_sync(~0u, state.first_position + row - state.first_row, sequence);
  const FullKv full = qkv.full[sequence];
  return reinterpret_cast<__half*>(full.data) +
         full_kv_index(qkv.shape, full.capacity, kv_head, which, position % full.capacity);
}

// A warp takes a head, or its part of one, of an activation row.
__device__ __forceinline__ void finish_qkv(const LinearArgs& args, const WarpRole& role, int block,
                                           const Sums& sums) {
  const QkvArgs& qkv = args.qkv;
  const int dim = qkv.shape.head_dim;
  int source = 0;
  while (block >= args.sources[source].blocks) block -= args.sources[source++].blocks;
  const float* bias = args.sources[source].bias;
  const int outputs = args.sources[source].outputs;
  const bool whole = qkv.half_tiles == 0;
  const int half = whole ? dim / 2 : qkv.half_tiles * kTileRows;  // pairs of this part
  const int heads = whole ? args.block_tiles * kTileRows / dim : 1;
  const int first_head = block / qkv.parts * heads, first_channel = block % qkv.parts * half;
  const bool rotated = source < 2;
  const Norm norm = rotated ? qkv.norms[source] : Norm{};
#pragma unroll 1
  for (int task = threadIdx.x / 32;; task += kLinearWarps) {
    const int own_head = task % heads;
    const int own_row = role.rank + (task / heads << args.row_shift);
    if (own_row >= args.num_rows) return;
    const int head = first_head + own_head, row = args.first_row + own_row;
    if (head * dim >= outputs) continue;
    const auto value = [&](int pair, bool high) {
      const int channel = first_channel + pair + (high ? dim / 2 : 0);
      const float sum = sums.at(own_row, own_head * dim + (high ? half : 0) + pair);
      return bias == nullptr ? sum : sum + bias[head * dim + channel];
    };
    float factor = 1.0f;
    if (norm.weight != nullptr) {
      float squares = 0.0f;
#pragma unroll 1
      for (int pair = role.lane; pair < half; pair += 32) {
        const float low = value(pair, false), high = value(pair, true);
        squares = fmaf(low, low, fmaf(high, high, squares));
      }
      factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + norm.epsilon);
    }
    __half* kv = source == 0 ? nullptr : full_kv_row(qkv, row, head, source - 1);
    float* q = args.out + static_cast<std::size_t>(row) * outputs + head * dim;
#pragma unroll 1
    for (int pair = role.lane; pair < half; pair += 32) {
      const int channel = first_channel + pair;
      float low = value(pair, false), high = value(pair, true);
      if (norm.weight != nullptr) {
        low *= factor * norm.weight[channel];
        high *= factor * norm.weight[channel + dim / 2];
      }
      if (rotated) {
        const std::size_t angle = static_cast<std::size_t>(row) * (dim / 2) + channel;
        const float cos = __ldcg(qkv.cos + angle), sin = __ldcg(qkv.sin + angle);
        const float turned = fmaf(low, cos, -(high * sin));
        high = fmaf(high, cos, low * sin);
        low = turned;
      }
      if (source == 0) {
        q[channel] = low;
        q[channel + dim / 2] = high;
      } else if (kv != nullptr) {
        kv[channel] = __float2half_rn(low);
        kv[channel + dim / 2] = __float2half_rn(high);
      }
    }
  }
}

// What the op does with the sums of a row block. `base`: plain_base() of this thread.
__device__ __forceinline__ void finish(const LinearArgs& args, const WarpRole& role, int block,
                                       const Sums& sums, float base) {
  switch (args.op) {
    case LinearOp::kStore:
    case LinearOp::kAdd:
      return finish_plain(args, role, block, sums, base);
    case LinearOp::kGateUp:
      return finish_gate_up(args, role, block, sums);
    case LinearOp::kQkv:
      return finish_qkv(args, role, block, sums);
  }
}

}  // namespace quantspec::cuda
