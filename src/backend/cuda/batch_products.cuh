// The kernel of products of batch_linear.cu.
#pragma once

#include "backend/cuda/batch_items.cuh"

namespace quantspec::cuda {

// And a warpgroup of which one thread brings operands.
constexpr int kBatchThreads = 32 * kBatchWarps + 128;

// Of a block's shared memory. Format: BatchHalf, BatchPlanes.
template <typename Format, int kRows>
struct BatchShared {
  static constexpr int kStages = Format::kStages(kRows);
  static constexpr int kOperandBytes = operand_bytes(kRows) + Format::kRecordBytes(kRows);
  alignas(128) std::byte weights[kBatchWarps][Format::kDepth][Format::kWeightBytes];
  alignas(128) std::byte operands[kStages][kOperandBytes];
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t weights_full[kBatchWarps][Format::kDepth];  // where they come by bulk copies
  float factors[kRows];                                     // of the norm
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One thread: all copies of operands.
template <typename Format, int kRows>
__device__ void bring_operands(const BatchArgs& args, BatchShared<Format, kRows>& shared) {
  constexpr std::uint32_t kBytes = BatchShared<Format, kRows>::kOperandBytes;
  RingPlace<BatchShared<Format, kRows>::kStages> place;
  for (int i = blockIdx.x; i < args.items; i += gridDim.x) {
    const BatchItem<Format::kUnit> item(args, i);
    for (int unit = item.unit; unit < item.end_unit; ++unit) {
      std::uint64_t* const full = &shared.full[place.stage];
      barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
      barrier_expect(full, kBytes);
      copy_bulk(shared_address(shared.operands[place.stage]),
                args.operands + static_cast<std::size_t>(unit) * kBytes, kBytes, full);
      place.advance();
    }
  }
}

// The sum of an item from those of its segments, as a balanced tree.
template <int N>
class SegmentSums {
 public:
  // v: of the i-th of `run` segments. True when that was the last: v is then the sum of all.
  template <int kLevel = 0>
  __device__ __forceinline__ bool add(int i, int run, float (&v)[N]) {
    if constexpr (kLevel == kLevels) {
      return true;
    } else {
      if (run == 1 << kLevel) return true;
      float(&left)[N] = left_[kLevel];
      if ((i >> kLevel & 1) == 0) {
#pragma unroll
        for (int j = 0; j < N; ++j) left[j] = v[j];
        return false;
      }
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = left[j] + v[j];
      return add<kLevel + 1>(i, run, v);
    }
  }

 private:
  static constexpr int kLevels = 3;
  static_assert(1 << kLevels == kSegments);
  float left_[kLevels][N];
};

// Calls f(row, to, i) for the activation rows of a lane's sums: [4 i] to [4 i + 3] are those of
// rows 8 i + 2 t (g, then g + 8 of the tile: [4 i + 2]) and the next ([4 i + 1], [4 i + 3]).
// to: of the row, `stride` apart.
template <int kRows, typename F>
__device__ __forceinline__ void for_rows(int num_rows, float* to, std::size_t stride, const F& f) {
  const int first = threadIdx.x % 4 * 2;
  to += first * stride;
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 8 * i + first + j;
      if (row < num_rows) f(row, to + j * stride, 4 * i + j);
    }
    to += 8 * stride;
  }
}

// What becomes of a lane's sums of a tile.
template <BatchEnd kEnd, int kRows>
__device__ __forceinline__ void end_item(const BatchArgs& args, int node, int tile,
                                         const float* factors, const float (&v)[kRows / 2]) {
  tile = afresh(tile);
  if (tile >= args.all_tiles) return;
  const int g = threadIdx.x % 32 / 4, rows = args.num_rows, outputs = args.outputs;
  if constexpr (kEnd == BatchEnd::kNodes) {
    const std::size_t columns = kTileRows * args.all_tiles;
    float* const to = args.nodes + node * rows * columns + tile * kTileRows + g;
    for_rows<kRows>(rows, to, columns, [&](int, float* to, int i) {
      to[0] = v[i];
      to[8] = v[i + 2];
    });
  } else if constexpr (kEnd == BatchEnd::kGateUp) {
    const int output = tile * (kTileRows / 2) + g;
    if (output >= outputs) return;
    for_rows<kRows>(rows, args.out + output, outputs, [&](int row, float* to, int i) {
      float gate = v[i] * factors[row], up = v[i + 2] * factors[row];
      if (args.bias[0] != nullptr) gate += args.bias[0][output];
      if (args.bias[1] != nullptr) up += args.bias[1][output];
      *to = gated(gate, up);
    });
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = tile * kTileRows + 8 * half + g;
      if (output >= outputs) continue;
      const float bias = args.bias[0] != nullptr ? args.bias[0][output] : 0.0f;
      float before[kRows / 2];  // asked for at once
      for_rows<kRows>(rows, args.out + output, outputs, [&](int, float* from, int i) {
        before[i] = bias + (kEnd == BatchEnd::kAdd ? __ldcg(from) : 0.0f);
      });
      for_rows<kRows>(rows, args.out + output, outputs, [&](int row, float* to, int i) {
        *to = v[i + 2 * half] * factors[row] + before[i];
      });
    }
  }
}

// Of the rows' norms.
template <typename Format, int kRows>
__device__ void set_factors(const BatchArgs& args, BatchShared<Format, kRows>& shared) {
  if (threadIdx.x < kRows) {
    float factor = 1.0f;
    if (args.squares != nullptr) {
      float parts[kSegments];
#pragma unroll
      for (int i = 0; i < kSegments; ++i) parts[i] = __ldcg(args.squares + i * kRows + threadIdx.x);
      factor = norm_factor(sum_of_segments(parts), args.cols, args.epsilon);
    }
    shared.factors[threadIdx.x] = factor;
  }
  barrier_sync(1, 32 * kBatchWarps);
}

// A warp's tile of every item.
template <typename Format, int kRows, BatchEnd kEnd>
__device__ void multiply_batch(const BatchArgs& args, BatchShared<Format, kRows>& shared) {
  using Shared = BatchShared<Format, kRows>;
  const int warp = warp_index();
  typename Format::Weights weights(args, shared.weights[warp][0], shared.weights_full[warp]);
  wait_for_previous_kernels();
  if constexpr (kEnd != BatchEnd::kNodes) set_factors(args, shared);
  RingPlace<Shared::kStages> place;
  SegmentSums<kRows / 2> segments;
  typename Format::template Sums<kRows> sums;
  for (int i = blockIdx.x; i < args.items; i += gridDim.x) {
    const BatchItem<Format::kUnit> item(args, i);
    const int tile = item.row_block * kBatchTiles + warp;
    int unit = item.unit;
#pragma unroll 1
    for (int segment = 0; segment < args.run; ++segment) {
      const int end = first_unit<Format::kUnit>(args.bands, args.units, item.segment + segment + 1);
      sums.clear();
#pragma unroll 1
      for (; unit < end; ++unit) {
        const typename Format::UnitWeights lane(weights.next());
        weights.give_back();
        barrier_wait(&shared.full[place.stage], place.parity);
        sums.add(lane, shared_address(shared.operands[place.stage]));
        if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[place.stage]);
        place.advance();
      }
      float of_segment[kRows / 2];
      sums.get(of_segment);
      if (segments.add(segment, args.run, of_segment)) {
        end_item<kEnd, kRows>(args, item.node, tile, shared.factors, of_segment);
      }
    }
  }
  weights.finish();
}

// Registers of a thread; those of all warpgroups are the multiprocessor's 65536 at most.
constexpr int kBatchRegisters = 240, kOperandRegisters = 24;

#endif

template <typename Format, int kRows, BatchEnd kEnd>
__global__ void __launch_bounds__(kBatchThreads, 1)
    batch_linear(const __grid_constant__ BatchArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) std::byte memory[];
  using Shared = BatchShared<Format, kRows>;
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], kBatchWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp_index() < kBatchWarps) {
    take_registers<kBatchRegisters>();
    multiply_batch<Format, kRows, kEnd>(args, shared);
  } else {
    give_registers_back<kOperandRegisters>();
    wait_for_previous_kernels();
    let_next_kernel_start();
    if (warp_index() == kBatchWarps && elect_one()) bring_operands(args, shared);
  }
#else
  __trap();  // it is launched on 9.0 alone, which takes kernels for 9.0a
#endif
}

}  // namespace quantspec::cuda
