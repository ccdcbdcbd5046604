// The last step of the kernel of linear_kernel.cuh: from the sums of all segments to what an op
// wants.
#pragma once

#include "backend/cuda/full_kv_row.cuh"
#include "backend/cuda/linear_stream.cuh"
#include "backend/params/linear.h"

namespace quantspec::cuda {

// Where a segment's sum of an activation row lies: outputs of 4 rows, 8 by 8, are in different
// banks. The width is a multiple of 32: a row block has an even number of tiles.
__device__ __forceinline__ int sum_place(int row, int output, int width) {
  return row * width + (output ^ row % 4 * 8);
}

// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))
__device__ __forceinline__ float sum_of_segments(float (&parts)[kSegments]) {
#pragma unroll
  for (int step = 1; step < kSegments; step *= 2) {
#pragma unroll
    for (int segment = 0; segment < kSegments; segment += 2 * step) {
      parts[segment] += parts[segment + step];
    }
  }
  return parts[0];
}
// Of the norm of an activation row, from the sum of its squares.
__device__ __forceinline__ float norm_factor(float squares, int cols, float epsilon) {
  return rsqrtf(squares / static_cast<float>(cols) + epsilon);
}
__device__ __forceinline__ float gated(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}

// What all segments have, in shared memory of the cluster. kPart: there may be fewer.
template <bool kPart>
struct Sums {
  const float* of_block;  // [block_segments, rows, width] by sum_place(), this block's
  const float* squares;   // [block_segments, rows], of activations; null: no norm
  int rows, width;
  int row_shift, cluster_shift;  // as WarpRole's

  __device__ float at(int row, int output) const {
    return over_segments(of_block + sum_place(row, output, width), rows * width);
  }
  // Of the norm, for an activation row.
  __device__ float factor(const LinearArgs& args, int row) const {
    if (squares == nullptr) return 1.0f;
    return norm_factor(over_segments(squares + row, rows), args.cols, args.norm.epsilon);
  }

 private:
  // The sum over segments of what this block has at `own`, `stride` from segment to segment. Of
  // fewer segments it is the tree's first part.
  __device__ float over_segments(const float* own, int stride) const {
    const int rank_shift = 3 - row_shift;  // segments of a block
    const int segments = 1 << (rank_shift + cluster_shift);
    const std::uint32_t here = shared_address(own);
    float parts[kSegments];
#pragma unroll
    for (int segment = 0; segment < kSegments; ++segment) {
      const int rank = segment >> rank_shift, of_rank = segment - (rank << rank_shift);
      const std::uint32_t at = here + of_rank * stride * 4;
      parts[segment] = 0.0f;
      if (kPart && segment >= segments) continue;
      parts[segment] =
          cluster_shift == 0 ? __uint_as_float(load_shared4(at)) : load_cluster(at, rank);
    }
    return sum_of_segments(parts);
  }
};
static_assert(kSegments == 8);

// Element i of those that a block finishes, [its rows, per_row].
struct OwnRow {
  int row, i;
  // row_shift: log2 of per_row
  __device__ OwnRow(const LinearArgs& args, const WarpRole& role, int i, int row_shift)
      : row(role.rank + (i >> row_shift << role.cluster_shift)), i(i & ((1 << row_shift) - 1)) {}
};

// What the finish of a row block wants from memory beside weights. It is asked for ahead, so that
// it does not cost the end of the kernel a trip to memory.
struct Ahead {
  // kStore, kAdd: what the thread's first element is added to, bias and output. kQkv: cos and sin
  // of the warp's first row and the lane's first pair.
  float first, second;
  FullKvRow kv;  // kQkv: of the warp's first row
};

// kStore, kAdd: of element i.
template <int kOp>
__device__ __forceinline__ Ahead plain_ahead(const LinearArgs& args, const WarpRole& role,
                                             int block, int i) {
  const OwnRow own(args, role, i, role.row_shift + 5);
  const int output = block * args.block_tiles * kTileRows + own.i,
            outputs = args.sources[0].outputs;
  Ahead ahead{};
  if (own.row >= args.num_rows || output >= outputs) return ahead;
  if (args.sources[0].bias != nullptr) ahead.first = args.sources[0].bias[output];
  if (is_op<kOp>(args, LinearOp::kAdd)) {
    ahead.second =
        __ldcg(args.out + static_cast<std::size_t>(args.first_row + own.row) * outputs + output);
  }
  return ahead;
}

template <int kOp, bool kPart>
__device__ __forceinline__ void finish_plain(const LinearArgs& args, const WarpRole& role,
                                             int block, const Sums<kPart>& sums, Ahead ahead) {
  const int outputs = args.sources[0].outputs;
#pragma unroll 1
  for (int i = afresh(threadIdx.x);; i += kLinearThreads) {
    const OwnRow own(args, role, i, role.row_shift + 5);
    if (own.row >= args.num_rows) return;
    const int output = block * args.block_tiles * kTileRows + own.i;
    float sum = 0.0f;  // before the next is looked for, which there is not where one row is all
    if (output < outputs) sum = sums.at(own.row, own.i);
    const Ahead next = plain_ahead<kOp>(args, role, block, i + kLinearThreads);
    if (output < outputs) {
      args.out[static_cast<std::size_t>(args.first_row + own.row) * outputs + output] =
          sum * sums.factor(args, own.row) + (ahead.first + ahead.second);
    }
    ahead = next;
  }
}

__device__ __forceinline__ void finish_gate_up(const LinearArgs& args, const WarpRole& role,
                                               int block, const Sums<false>& sums) {
  const int half = args.block_tiles / 2 * kTileRows, outputs = args.sources[0].outputs;
#pragma unroll 1
  for (int i = afresh(threadIdx.x);; i += kLinearThreads) {
    const OwnRow own(args, role, i, role.row_shift + 4);
    if (own.row >= args.num_rows) return;
    const int output = block * half + own.i;
    if (output >= outputs) continue;
    const float factor = sums.factor(args, own.row);
    float gate = sums.at(own.row, own.i) * factor, up = sums.at(own.row, half + own.i) * factor;
    if (args.sources[0].bias != nullptr) gate += args.sources[0].bias[output];
    if (args.sources[1].bias != nullptr) up += args.sources[1].bias[output];
    args.out[static_cast<std::size_t>(args.first_row + own.row) * outputs + output] =
        gated(gate, up);
  }
}

// What a row block of kQkv has.
struct HeadBlock {
  int source;  // queries, keys or values
  bool whole;  // whole heads
  int half;    // pairs of a head, or of the part of one that is here
  int heads, first_head, first_channel;

  __device__ HeadBlock(const LinearArgs& args, int block) : source(0) {
    const QkvArgs& qkv = args.qkv;
    while (block >= args.sources[source].blocks) block -= args.sources[source++].blocks;
    const int dim = qkv.shape.head_dim;
    whole = qkv.half_tiles == 0;
    half = whole ? dim / 2 : qkv.half_tiles * kTileRows;
    heads = whole ? args.block_tiles * kTileRows / dim : 1;
    const int head = head_of(qkv, block);
    first_head = head * heads;
    first_channel = (block - head * qkv.parts) * half;
  }
  __device__ int rotated() const { return source < 2; }
};

// Whether the warp has no row of a part of a head.
__device__ __forceinline__ bool nothing_to_finish(const LinearArgs& args, const WarpRole& role) {
  return args.qkv.half_tiles != 0 &&
         role.rank + (warp_index() << role.cluster_shift) >= args.num_rows;
}
__device__ __forceinline__ void load_angle(const LinearArgs& args, int row, int channel,
                                           Ahead& ahead) {
  const std::size_t at = static_cast<std::size_t>(row) * (args.qkv.shape.head_dim / 2) + channel;
  ahead.first = __ldcg(args.qkv.cos + at);
  ahead.second = __ldcg(args.qkv.sin + at);
}

// A warp takes a head, or its part of one, of an activation row.
template <bool kAlone>
__device__ __forceinline__ void finish_qkv(const LinearArgs& args, const WarpRole& role, int block,
                                           const Sums<false>& sums, Ahead ahead) {
  const QkvArgs& qkv = args.qkv;
  if (nothing_to_finish(args, role)) return;
  const HeadBlock at(args, block);
  const int dim = qkv.shape.head_dim, source = at.source;
  const float* bias = args.sources[source].bias;
  const int outputs = args.sources[source].outputs;
  const Norm norm = !kAlone && at.rotated() ? qkv.norms[source] : Norm{};
  // NOTE: by a shuffle, so that the compiler knows that a warp stays together; else it is taken for
  // divided from here on, in the products of the next row block, too.
  const int first_task = __shfl_sync(~0u, afresh(threadIdx.x) / 32, 0);
#pragma unroll 1
  for (int task = first_task;; task += kLinearWarps) {
    const int task_row = at.heads == 1 ? task : task / at.heads;
    const int own_head = task - task_row * at.heads;
    const int own_row = role.rank + (task_row << role.cluster_shift);
    if (own_row >= args.num_rows) return;
    const int head = at.first_head + own_head, row = args.first_row + own_row;
    if (head * dim >= outputs) continue;
    __half* kv = nullptr;
    if (source > 0) {
      if (role.row_warps > 1 || task >= kLinearWarps) ahead.kv = FullKvRow::of(qkv.sequences, row);
      if (ahead.kv.position < 0) continue;
      kv = ahead.kv.at(qkv.shape, head, source - 1);
    }
    const float row_factor = sums.factor(args, own_row);
    const auto value = [&](int pair, bool high) {
      const int channel = at.first_channel + pair + (high ? dim / 2 : 0);
      const float sum = sums.at(own_row, own_head * dim + (high ? at.half : 0) + pair) * row_factor;
      return bias == nullptr ? sum : sum + bias[head * dim + channel];
    };
    float factor = 1.0f;
    if (norm.weight != nullptr) {
      float squares = 0.0f;
#pragma unroll 1
      for (int pair = role.lane; pair < at.half; pair += 32) {
        const float low = value(pair, false), high = value(pair, true);
        squares = fmaf(low, low, fmaf(high, high, squares));
      }
      factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + norm.epsilon);
    }
    float* q = args.out + static_cast<std::size_t>(row) * outputs + head * dim;
#pragma unroll 1
    for (int pair = role.lane; pair < at.half; pair += 32) {
      const int channel = at.first_channel + pair;
      float low = value(pair, false), high = value(pair, true);
      if (norm.weight != nullptr) {
        low *= factor * norm.weight[channel];
        high *= factor * norm.weight[channel + dim / 2];
      }
      if (at.rotated()) {
        if (role.row_warps > 1 || task >= kLinearWarps || pair >= 32) {
          load_angle(args, row, channel, ahead);
        }
        const float cos = ahead.first, sin = ahead.second;
        const float turned = fmaf(low, cos, -(high * sin));
        high = fmaf(high, cos, low * sin);
        low = turned;
      }
      if (source == 0) {
        q[channel] = low;
        q[channel + dim / 2] = high;
      } else {
        kv[channel] = __float2half_rn(low);
        kv[channel + dim / 2] = __float2half_rn(high);
      }
    }
  }
}

template <int kOp>
__device__ __forceinline__ Ahead look_ahead(const LinearArgs& args, const WarpRole& role,
                                            int block) {
  if (is_op<kOp>(args, LinearOp::kGateUp)) return {};
  if (!is_op<kOp>(args, LinearOp::kQkv)) return plain_ahead<kOp>(args, role, block, threadIdx.x);
  Ahead ahead{};
  if (role.row_warps > 1 || nothing_to_finish(args, role)) return ahead;
  const HeadBlock at(args, block);
  const int warp = warp_index(), row = at.heads == 1 ? warp : warp / at.heads;
  if (at.source > 0 && row < args.num_rows) {
    ahead.kv = FullKvRow::of(args.qkv.sequences, args.first_row + row);
  }
  if (at.rotated() && row < args.num_rows && role.lane < at.half) {
    load_angle(args, args.first_row + row, at.first_channel + role.lane, ahead);
  }
  return ahead;
}

// What the op does with the sums of a row block. ahead: look_ahead() of this thread.
template <int kOp, bool kAlone, bool kPart>
__device__ __forceinline__ void finish(const LinearArgs& args, const WarpRole& role, int block,
                                       const Sums<kPart>& sums, const Ahead& ahead) {
  if constexpr (kPart) {
    finish_plain<kOp>(args, role, block, sums, ahead);
  } else if (is_op<kOp>(args, LinearOp::kGateUp)) {
    finish_gate_up(args, role, block, sums);
  } else if (is_op<kOp>(args, LinearOp::kQkv)) {
    finish_qkv<kAlone>(args, role, block, sums, ahead);
  } else {
    finish_plain<kOp>(args, role, block, sums, ahead);
  }
}

}  // namespace quantspec::cuda
