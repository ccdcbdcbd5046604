// The kernel of products of batch_linear.cu.
#pragma once

#include "backend/cuda/batch_linear.h"
#include "backend/cuda/batch_operands.cuh"
#include "backend/cuda/linear_finish.cuh"
#include "backend/cuda/wgmma.cuh"

namespace quantspec::cuda {

constexpr int kBatchWarps = kBatchTiles;               // a tile each
constexpr int kBatchThreads = 32 * kBatchWarps + 128;  // and those of which one brings operands

// What becomes of an item's sums: nodes of a sum in memory, or what the op does.
enum class BatchEnd { kNodes, kStore, kAdd, kGateUp };

// A tile is 16 outputs of a matrix; of gate and up, 8 of each.
struct BatchArgs {
  const std::byte* data[kMaxSources];
  int tiles[kMaxSources];
  std::size_t stride;          // bytes from row to row of a matrix
  int tile_rows;               // of a matrix
  std::ptrdiff_t second_half;  // bytes from row 0 of a tile to row 8
  int all_tiles;
  int units, bands, cols;
  int run, items;  // BatchSharing
  const std::byte* operands;
  const float* squares;  // [kSegments, kRows]; null: no norm
  float epsilon;
  int num_rows;
  float* nodes;  // [BatchSharing::nodes(), num_rows, 16 * all_tiles]
  // What the op does, where sums are whole:
  const float* bias[2];
  float* out;  // [num_rows, outputs]
  int outputs;
};

// Of a block's shared memory.
template <int kRows>
struct BatchShared {
  static constexpr int kDepth = 8;                     // stages of a warp's ring of weights
  static constexpr int kStages = kRows == 64 ? 5 : 8;  // of operands
  std::byte weights[kBatchWarps][kDepth][BatchFormat::kUnitBytes];
  std::byte operands[kStages][operand_bytes(kRows)];
  std::uint64_t full[kStages], empty[kStages];
  float factors[kRows];  // of the norm
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct BatchItem {
  int row_block;
  int node;     // of the row block
  int segment;  // the first
  int unit, end_unit;

  __device__ BatchItem(const BatchArgs& args, int i) {
    const int nodes = kSegments / args.run;
    row_block = i / nodes;
    node = i % nodes;
    segment = node * args.run;
    unit = first_unit(args.bands, args.units, segment);
    end_unit = first_unit(args.bands, args.units, segment + args.run);
  }
};

// A stage of a ring, and the parity of its use.
template <int kStages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// One thread: all copies of operands.
template <int kRows>
__device__ void bring_operands(const BatchArgs& args, BatchShared<kRows>& shared) {
  constexpr std::uint32_t kBytes = operand_bytes(kRows);
  RingPlace<BatchShared<kRows>::kStages> place;
  for (int i = blockIdx.x; i < args.items; i += gridDim.x) {
    const BatchItem item(args, i);
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

// A warp's ring of weights: all but what it multiplies is under way.
template <int kDepth>
class BatchWeights {
 public:
  using Full = BatchFormat;

  __device__ BatchWeights(const BatchArgs& args, std::byte* ring)
      : args_(args),
        item_(blockIdx.x),
        ring_(shared_address(ring)),
        end_(ring_ + kDepth * Full::kUnitBytes),
        place_(ring_) {
    begin();
    for (int i = 0; i < kDepth; ++i) load();
  }
  // The next stage, to be given back before the one after it is asked for.
  __device__ std::uint32_t next() {
    wait_async_copies<kDepth - 1>();
    __syncwarp();
    return place_;
  }
  __device__ void give_back() {
    __syncwarp();
    load();
  }

 private:
  // Finds the next item that has units.
  __device__ void begin() {
    for (; units_ == 0 && item_ < args_.items; item_ += gridDim.x) {
      const BatchItem item(args_, item_);
      units_ = item.end_unit - item.unit;
      int tile = min(item.row_block * kBatchTiles + warp_index(), args_.all_tiles - 1), source = 0;
      while (tile >= args_.tiles[source]) tile -= args_.tiles[source++];
      const int lane = threadIdx.x % 32;
      from_ = args_.data[source] +
              static_cast<std::size_t>(tile * args_.tile_rows + lane / 8) * args_.stride +
              item.unit * Full::kRowBytes + lane % 8 * 16;
    }
  }
  __device__ void load() {
    if (units_ > 0) {
      const int lane = threadIdx.x % 32;
      const std::uint32_t to = place_ + Full::piece_at(lane / 8, lane % 8);
      const std::byte* const second = from_ + args_.second_half;
      copy_stream16(to, from_);
      copy_stream16(to + 4 * Full::kRowBytes, from_ + 4 * args_.stride);
      copy_stream16(to + 8 * Full::kRowBytes, second);
      copy_stream16(to + 12 * Full::kRowBytes, second + 4 * args_.stride);
      from_ += Full::kRowBytes;
      if (--units_ == 0) begin();
    }
    commit_async_copies();
    place_ += Full::kUnitBytes;
    if (place_ == end_) place_ = ring_;
  }

  const BatchArgs& args_;
  int item_;  // the next
  std::uint32_t ring_, end_, place_;
  int units_ = 0;  // left of the item
  const std::byte* from_ = nullptr;
};

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
__device__ __forceinline__ void end_item(const BatchArgs& args, const BatchItem& item, int tile,
                                         const float* factors, const float (&v)[kRows / 2]) {
  tile = afresh(tile);
  if (tile >= args.all_tiles) return;
  const int g = threadIdx.x % 32 / 4, rows = args.num_rows, outputs = args.outputs;
  if constexpr (kEnd == BatchEnd::kNodes) {
    const std::size_t columns = kTileRows * args.all_tiles;
    float* const to = args.nodes + item.node * rows * columns + tile * kTileRows + g;
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
template <int kRows>
__device__ void set_factors(const BatchArgs& args, BatchShared<kRows>& shared) {
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
template <int kRows, BatchEnd kEnd>
__device__ void multiply_batch(const BatchArgs& args, BatchShared<kRows>& shared) {
  using Shared = BatchShared<kRows>;
  using Full = BatchFormat;
  constexpr int kSteps = kBatchSteps;
  constexpr int kStepBytes = operand_bytes(kRows) / kSteps;
  const int warp = warp_index(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  BatchWeights<Shared::kDepth> weights(args, shared.weights[warp][0]);
  wait_for_previous_kernels();
  if constexpr (kEnd != BatchEnd::kNodes) set_factors(args, shared);
  RingPlace<Shared::kStages> place;
  SegmentSums<kRows / 2> segments;
  const std::uint32_t low = Full::piece_at(g, t), high = low ^ 64;  // of both halves of a unit
  float sums[kRows];  // hi and lo of 8 rows, of the next 8, ..: each a C fragment
  // NOTE: weights come to registers when products have ended, while the other warpgroup's run. With
  // copies to registers beside products the compiler has the products wait; where it does not, by
  // detours, that was no faster.
  const auto add_unit = [&] {
    const std::uint32_t from = weights.next();
    std::uint32_t a[4 * kSteps];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t rows = from + (half == 0 ? low : high);
      const uint4 first = load_shared16(rows), second = load_shared16<8 * Full::kRowBytes>(rows);
      const std::uint32_t x[8] = {first.x, second.x, first.y, second.y,
                                  first.z, second.z, first.w, second.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) a[8 * half + i] = x[i];
    }
    weights.give_back();
    barrier_wait(&shared.full[place.stage], place.parity);
    const std::uint32_t b = shared_address(shared.operands[place.stage]);
    products_begin();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      wgmma_bf16(sums, a + 4 * i, plain_operand(b + i * kStepBytes, kMatrixBytes, kGroupBytes / 2));
    }
    products_commit();
    products_wait<0>(sums);
    if (lane == 0) barrier_arrive(&shared.empty[place.stage]);
    place.advance();
  };

  for (int i = blockIdx.x; i < args.items; i += gridDim.x) {
    const BatchItem item(args, i);
    const int tile = item.row_block * kBatchTiles + warp;
    int unit = item.unit;
#pragma unroll 1
    for (int segment = 0; segment < args.run; ++segment) {
      const int end = first_unit(args.bands, args.units, item.segment + segment + 1);
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
#pragma unroll 1
      for (; unit < end; ++unit) add_unit();
      float of_segment[kRows / 2];
#pragma unroll
      for (int j = 0; j < kRows / 2; ++j) {
        of_segment[j] = sums[j / 4 * 8 + j % 4] + sums[j / 4 * 8 + 4 + j % 4];
      }
      if (segments.add(segment, args.run, of_segment)) {
        end_item<kEnd, kRows>(args, item, tile, shared.factors, of_segment);
      }
    }
  }
  wait_async_copies<0>();
}

// Registers of a thread; those of all warpgroups are the multiprocessor's 65536 at most.
constexpr int kBatchRegisters = 240, kOperandRegisters = 24;

#endif

template <int kRows, BatchEnd kEnd>
__global__ void __launch_bounds__(kBatchThreads, 1)
    batch_linear(const __grid_constant__ BatchArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<BatchShared<kRows>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < BatchShared<kRows>::kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], kBatchWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp_index() < kBatchWarps) {
    take_registers<kBatchRegisters>();
    multiply_batch<kRows, kEnd>(args, shared);
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
