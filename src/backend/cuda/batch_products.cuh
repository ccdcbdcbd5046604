// The kernel of products of batch_op.cuh.
#pragma once

#include <algorithm>

#include "backend/cuda/batch_items.cuh"

namespace quantspec::cuda {

// And a warpgroup that brings what they multiply.
constexpr int kBatchThreads = 32 * kBatchWarps + 128;
template <typename Format>
inline constexpr int kBringers = Format::kOwnRings ? 1 : 4;  // warps of it that do

// Of a block's shared memory. Format: BatchHalf, BatchPlanes, BatchCodes. Weights of formats that
// are kOwnRings come to a ring of each warp, of others to the ring that operands come to.
template <typename Format, int kRows>
struct BatchShared {
  static constexpr int kStages = Format::kStages(kRows);
  static constexpr int kOperandBytes =
      operand_bytes(kRows, Format::kSteps) + Format::kRecordBytes(kRows);
  static constexpr int kParts = Format::kParts(kRows);
  static constexpr int kStageBytes = kOperandBytes / kParts;
  static constexpr int kTiles = kBlockTiles<Format, kRows>;
  static constexpr int kLeftSums =
      left_sums_bytes(kRows, kTiles, Format::kSharedLevels(kRows)) / sizeof(float);
  alignas(128) std::byte weights[kTiles][Format::kDepth(kRows)][Format::kWeightBytes];
  alignas(128) std::byte operands[kStages][kStageBytes];
  std::uint64_t full[kStages], empty[kStages];
  float factors[kRows];  // of the norm
  float left_sums[kLeftSums];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The parts of the units of a block's items one after the other, with the weights of those tiles
// that a warp brings.
template <typename Format, int kRows>
class BatchUnits {
 public:
  __device__ explicit BatchUnits(const BatchArgs& args)
      : args_(args), first_tile_((warp_index() - kBatchWarps) * kTiles), next_item_(blockIdx.x) {
    begin();
  }
  __device__ bool there() const { return left_ > 0; }
  __device__ int part() const { return unit_ * kParts + part_; }  // of all of the op's
  __device__ void advance() {
    if (++part_ < kParts) return;
    part_ = 0;
    ++unit_;
    for (int i = 0; i < kTiles; ++i) {
      upper_[i] += Format::kUpper;
      lower_[i] += Format::kLower;
    }
    if (--left_ == 0) begin();
  }
  // One thread: to a stage of weights of all tiles, `stride` apart.
  __device__ void copy_weights(std::uint32_t to, int stride, std::uint64_t* full) const {
    to += first_tile_ * stride;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      copy_bulk_once(to, upper_[i], Format::kUpper, full);
      if constexpr (Format::kLower > 0) {
        copy_bulk_once(to + Format::kUpper, lower_[i], Format::kLower, full);
      }
      to += stride;
    }
  }

 private:
  static constexpr int kBlock = kBlockTiles<Format, kRows>;
  static constexpr int kParts = Format::kParts(kRows);
  static constexpr int kTiles = Format::kOwnRings ? 0 : kBlock / kBringers<Format>;
  // Finds the next item that has units.
  __device__ void begin() {
    for (; left_ == 0 && next_item_ < args_.items; next_item_ += gridDim.x) {
      const BatchItem<Format::kUnit> item(args_, next_item_);
      unit_ = item.unit;
      left_ = item.end_unit - item.unit;
      for (int i = 0; i < kTiles; ++i) {
        const BatchTile at(args_, item.row_block * kBlock + first_tile_ + i);
        upper_[i] = args_.data[at.source] + at.tile * args_.stride + unit_ * Format::kUpper;
        if constexpr (Format::kLower > 0) {
          lower_[i] =
              args_.lower[at.source] + at.tile * args_.lower_stride + unit_ * Format::kLower;
        }
      }
    }
  }

  const BatchArgs& args_;
  int first_tile_;
  int next_item_;
  int unit_ = 0, left_ = 0;  // of the item
  int part_ = 0;             // of the unit
  const std::byte *upper_[std::max(kTiles, 1)] = {}, *lower_[std::max(kTiles, 1)] = {};
};

// Warps that bring units to the block's ring: operands, and weights that have no rings of their
// own, of which as many as there is room for come before the kernels ahead have ended.
template <typename Format, int kRows>
__device__ void bring_units(const BatchArgs& args, BatchShared<Format, kRows>& shared) {
  using Shared = BatchShared<Format, kRows>;
  constexpr std::uint32_t kOperands = Shared::kStageBytes;
  constexpr std::uint32_t kWeights =
      Format::kOwnRings ? 0 : Shared::kTiles / kBringers<Format> * Format::kWeightBytes;
  const bool first = warp_index() == kBatchWarps;  // brings operands, too
  const auto bring_weights = [&](const BatchUnits<Format, kRows>& units, int stage) {
    if (elect_one()) {
      std::uint64_t* const full = &shared.full[stage];
      barrier_expect(full, kWeights + (first ? kOperands : 0));
      if constexpr (!Format::kOwnRings) {
        units.copy_weights(shared_address(shared.weights[0][stage]), sizeof(shared.weights[0]),
                           full);
      }
    }
    __syncwarp();
  };
  const auto bring_operands = [&](int part, int stage) {
    if (first && elect_one()) {
      copy_bulk(shared_address(shared.operands[stage]),
                args.operands + static_cast<std::size_t>(part) * kOperands, kOperands,
                &shared.full[stage]);
    }
    __syncwarp();
  };
  BatchUnits<Format, kRows> units(args);
  RingPlace<Shared::kStages> place;
  int early = 0;
  for (; early < Shared::kStages && units.there(); ++early, units.advance(), place.advance()) {
    bring_weights(units, early);
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  BatchUnits<Format, kRows> begun(args);
  for (int i = 0; i < early; ++i, begun.advance()) bring_operands(begun.part(), i);
  for (; units.there(); units.advance(), place.advance()) {
    barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
    __syncwarp();
    bring_weights(units, place.stage);
    bring_operands(units.part(), place.stage);
  }
}

// The ring of operands as a multiplying warp sees it.
template <typename Shared>
class OperandRing {
 public:
  __device__ explicit OperandRing(Shared& shared) : shared_(shared) {}
  // The stage that is next, when it is there.
  __device__ __forceinline__ std::uint32_t wait() const {
    barrier_wait(&shared_.full[place_.stage], place_.parity);
    return operands();
  }
  __device__ __forceinline__ std::uint32_t operands() const {
    return shared_address(shared_.operands[place_.stage]);
  }
  __device__ __forceinline__ int stage() const { return place_.stage; }
  // To the one after it. Returns that which is to be given back.
  __device__ __forceinline__ int advance() {
    const int stage = place_.stage;
    place_.advance();
    return stage;
  }
  __device__ __forceinline__ void give_back(int stage) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(&shared_.empty[stage]);
  }

 private:
  Shared& shared_;
  RingPlace<Shared::kStages> place_;
};

// Left operands of the tree of an item's sums, N of each of a lane's tiles: those of the first
// kShared levels in shared memory, others in global memory.
template <int kTiles, int N, int kShared>
class LeftSums {
 public:
  __device__ LeftSums(float* in_shared, float* in_memory)
      : shared_(in_shared + threadIdx.x),
        memory_(in_memory + blockIdx.x * ((kSumLevels - kShared) * kLevelFloats) + threadIdx.x) {}
  template <int kLevel>
  __device__ __forceinline__ void set(int tile, const float (&v)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kLevel < kShared) {
        shared_[at(kLevel, tile, i)] = v[i];
      } else {
        __stcg(memory_ + at(kLevel - kShared, tile, i), v[i]);
      }
    }
  }
  // v = left + v
  template <int kLevel>
  __device__ __forceinline__ void add_to(int tile, float (&v)[N]) const {
    float left[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kLevel < kShared) {
        left[i] = shared_[at(kLevel, tile, i)];
      } else {
        left[i] = __ldcg(memory_ + at(kLevel - kShared, tile, i));
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = left[i] + v[i];
  }

 private:
  static constexpr int kThreads = 32 * kBatchWarps;
  static constexpr int kLevelFloats = kTiles * N * kThreads;
  __device__ static constexpr int at(int level, int tile, int i) {
    return level * kLevelFloats + (tile * N + i) * kThreads;
  }

  float* shared_;
  float* memory_;
};

// The sum of an item from those of its segments, as a balanced tree. v: of the i-th of `run`
// segments. True when that was the last: v is then the sum of all.
template <int kLevel = 0, typename Left, int N>
__device__ __forceinline__ bool add_segment(const Left& left, int tile, int i, int run,
                                            float (&v)[N]) {
  if constexpr (kLevel == kSumLevels) {
    return true;
  } else {
    if (run == 1 << kLevel) return true;
    if ((i >> kLevel & 1) == 0) {
      left.template set<kLevel>(tile, v);
      return false;
    }
    left.template add_to<kLevel>(tile, v);
    return add_segment<kLevel + 1>(left, tile, i, run, v);
  }
}

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

__device__ __forceinline__ float gate_and_up(const BatchArgs& args, int output, float factor,
                                             float gate, float up) {
  gate *= factor;
  up *= factor;
  if (args.bias[0] != nullptr) gate += args.bias[0][output];
  if (args.bias[1] != nullptr) up += args.bias[1][output];
  return gated(gate, up);
}

// What becomes of a lane's sums of a tile.
template <BatchEnd kEnd, int kRows>
__device__ __forceinline__ void end_tile(const BatchArgs& args, int node, int tile,
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
      *to = gate_and_up(args, output, factors[row], v[i], v[i + 2]);
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

// The same of those of a warp's tiles.
template <BatchEnd kEnd, int kRows, int kTiles>
__device__ __forceinline__ void end_item(const BatchArgs& args, int node, int tile,
                                         const float* factors,
                                         const float (&v)[kTiles][kRows / 2]) {
  if constexpr (kEnd == BatchEnd::kGateUp && kTiles == 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = afresh(tile) / 2 * kTileRows + 8 * half + threadIdx.x % 32 / 4;
      if (output >= args.outputs) continue;
      for_rows<kRows>(args.num_rows, args.out + output, args.outputs,
                      [&](int row, float* to, int i) {
                        i += 2 * half;
                        *to = gate_and_up(args, output, factors[row], v[0][i], v[1][i]);
                      });
    }
  } else {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      end_tile<kEnd, kRows>(args, node, tile + t, factors, v[t]);
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

// A warp's own ring of weights, where it has one.
template <typename Format, int kRows>
__device__ auto own_weights(const BatchArgs& args, std::byte* ring) {
  if constexpr (Format::kOwnRings) {
    return typename Format::template Weights<kRows>(args, ring);
  } else {
    return 0;
  }
}

// A warp's tiles of every item.
template <typename Format, int kRows, BatchEnd kEnd>
__device__ void multiply_batch(const BatchArgs& args, BatchShared<Format, kRows>& shared) {
  using Shared = BatchShared<Format, kRows>;
  constexpr int kTiles = Format::kTiles(kRows);
  const int warp = warp_index(), first_tile = kTiles * warp;
  [[maybe_unused]] auto weights = own_weights<Format, kRows>(args, shared.weights[first_tile][0]);
  wait_for_previous_kernels();
  if constexpr (kEnd != BatchEnd::kNodes) set_factors(args, shared);
  OperandRing<Shared> ring(shared);
  const LeftSums<kTiles, kRows / 2, Format::kSharedLevels(kRows)> left(shared.left_sums, args.left);
  typename Format::template Sums<kRows> sums[kTiles];
  for (int i = blockIdx.x; i < args.items; i += gridDim.x) {
    const BatchItem<Format::kUnit> item(args, i);
    const int tile = item.row_block * Shared::kTiles + first_tile;
    int unit = item.unit;
#pragma unroll 1
    for (int segment = 0; segment < args.run; ++segment) {
      const int end = first_unit<Format::kUnit>(args.bands, args.units, item.segment + segment + 1);
#pragma unroll
      for (auto& of_tile : sums) of_tile.clear();
      if constexpr (Format::kOwnRings) {
        sums[0].add(end - unit, weights, ring);
      } else {
#pragma unroll 1
        for (int i = unit; i < end; ++i) {
          const std::uint32_t operands = ring.wait();
          Format::add_unit(args, shared_address(shared.weights[first_tile][ring.stage()]),
                           sizeof(shared.weights[0]), operands, sums);
          ring.give_back(ring.advance());
        }
      }
      unit = end;
      float of_segment[kTiles][kRows / 2];
      bool whole = false;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        sums[t].get(of_segment[t]);
        whole = add_segment(left, t, segment, args.run, of_segment[t]);
      }
      if (whole) end_item<kEnd, kRows>(args, item.node, tile, shared.factors, of_segment);
    }
  }
  if constexpr (Format::kOwnRings) weights.finish();
}

// Registers of a thread; those of all warpgroups are the multiprocessor's 65536 at most.
template <typename Format>
inline constexpr int kBatchRegisters = Format::kOwnRings ? 240 : 232;
template <typename Format>
inline constexpr int kBringerRegisters = Format::kOwnRings ? 24 : 40;

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
      barrier_init(&shared.full[i], kBringers<Format>);
      barrier_init(&shared.empty[i], kBatchWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (warp_index() < kBatchWarps) {
    take_registers<kBatchRegisters<Format>>();
    multiply_batch<Format, kRows, kEnd>(args, shared);
  } else {
    give_registers_back<kBringerRegisters<Format>>();
    if (warp_index() < kBatchWarps + kBringers<Format>) bring_units<Format, kRows>(args, shared);
  }
#else
  __trap();  // it is launched on 9.0 alone, which takes kernels for 9.0a
#endif
}

}  // namespace quantspec::cuda
