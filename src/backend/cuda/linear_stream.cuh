// Which tiles a warp of the kernel of linear_kernel.cuh works on, and how their weights come to it.
#pragma once

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// --- which rows ----------------------------------------------------------------------------------

struct TilePlace {
  int source;
  int tile;  // of the source; -1: beyond the end
};

// Tile i of a row block.
__device__ __forceinline__ TilePlace locate(const LinearArgs& args, int block, int i) {
  TilePlace place{0, block * args.block_tiles + i};
  if (args.op == LinearOp::kGateUp) {
    const int half = args.block_tiles / 2;
    place.source = i >= half;
    place.tile = block * half + (i < half ? i : i - half);
  } else if (args.op == LinearOp::kQkv) {
    while (block >= args.sources[place.source].blocks) block -= args.sources[place.source++].blocks;
    const int half = args.qkv.half_tiles;
    if (half == 0) {
      place.tile = block * args.block_tiles + i;
    } else {
      const int head_half = args.qkv.shape.head_dim / 32, head = block / args.qkv.parts;
      place.tile = head * 2 * head_half + (block - head * args.qkv.parts) * half +
                   (i < half ? i : head_half + i - half);
    }
  }
  if (place.tile * kTileRows >= args.sources[place.source].outputs) place.tile = -1;
  return place;
}

// --- stream --------------------------------------------------------------------------------------

// In chunks of kChunkInputs.
__device__ __forceinline__ int slice_begin(const LinearArgs& args, int slice) {
  return slice * args.chunks / kSlices;
}

// What a warp is: its place in the block, its slice.
struct WarpRole {
  int lane;
  int row;             // first of the pairs of tiles of a row block that it takes
  int slice_of_block;  // of block_slices
  int block_slices;
  int rank;  // of the block in its cluster
  int first_unit, end_unit;
  int first_chunk, chunks;  // of the block
  int first_block, stride;  // row blocks that it takes

  __device__ WarpRole(const LinearArgs& args, int unit) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    row = warp & (args.row_warps - 1);
    slice_of_block = warp >> args.row_shift;
    block_slices = kSlices >> args.row_shift;
    rank = blockIdx.x & (args.row_warps - 1);
    const int slice = rank * block_slices + slice_of_block;
    first_unit = slice_begin(args, slice) * (kChunkInputs / unit);
    end_unit = min(slice_begin(args, slice + 1) * (kChunkInputs / unit), args.units);
    first_chunk = slice_begin(args, rank * block_slices);
    chunks = slice_begin(args, (rank + 1) * block_slices) - first_chunk;
    first_block = blockIdx.x >> args.row_shift;
    stride = gridDim.x >> args.row_shift;
  }
};

// Waits until at most depth - 2 of a thread's copies are under way, for the depths there are: 8, 6,
// 4, 3 and 2.
__device__ __forceinline__ void wait_for_stage(int depth) {
  if (depth == 8) {
    wait_async_copies<6>();
  } else if (depth == 6) {
    wait_async_copies<4>();
  } else if (depth == 4) {
    wait_async_copies<2>();
  } else if (depth == 3) {
    wait_async_copies<1>();
  } else {
    wait_async_copies<0>();
  }
}

// A warp's ring: units in the order in which the warp multiplies them, `depth - 1` under way. It
// takes tiles i and i + block_tiles / 2 of a row block together; the second may be missing.
template <typename Format>
class WeightStream {
 public:
  __device__ WeightStream(const LinearArgs& args, const WarpRole& role, std::byte* shared)
      : args_(args),
        role_(role),
        ring_(shared_address(shared) + threadIdx.x / 32 * args.depth * args.places.stage_bytes),
        end_(ring_ + args.depth * args.places.stage_bytes),
        writing_(ring_),
        reading_(ring_),
        block_(role.first_block),
        pair_(role.row) {
    next_pair();
  }

  // Starts copies until so many have been.
  __device__ void start(int count) {
#pragma unroll 1
    while (started_ < count) {
      load();
      ++started_;
    }
  }

  // The next unit; what it returned before is written over.
  __device__ std::uint32_t next() {
    wait_for_stage(args_.depth);
    __syncwarp();
    load();
    const std::uint32_t stage = reading_;
    reading_ += args_.places.stage_bytes;
    if (reading_ == end_) reading_ = ring_;
    return stage;
  }

 private:
  // Begins the pair of tiles at block_, pair_ or the first after it that is there.
  __device__ void next_pair() {
    units_ = role_.end_unit - role_.first_unit;
    if (units_ <= 0) return;
    const int half = args_.block_tiles / 2;
    for (; block_ < args_.row_blocks; block_ += role_.stride, pair_ = role_.row) {
      for (; pair_ < half; pair_ += args_.row_warps) {
        if (!begin(first_, pair_)) continue;
        if (!begin(second_, half + pair_)) second_.data = nullptr;
        return;
      }
    }
    units_ = 0;
  }
  __device__ bool begin(WeightPlace& at, int tile) {
    const TilePlace place = locate(args_, block_, tile);
    if (place.tile < 0) return false;
    at = Format::begin(args_, args_.sources[place.source], place.tile, role_.first_unit);
    return true;
  }

  __device__ void load() {
    if (units_ > 0) {
      Format::load(args_, first_, writing_);
      if (second_.data != nullptr) {
        Format::load(args_, second_, writing_ + args_.places.stage_bytes / 2);
      }
      if (--units_ == 0) {
        pair_ += args_.row_warps;
        next_pair();
      }
    }
    commit_async_copies();
    writing_ += args_.places.stage_bytes;
    if (writing_ == end_) writing_ = ring_;
  }

  const LinearArgs& args_;
  const WarpRole& role_;
  std::uint32_t ring_, end_, writing_, reading_;
  int block_, pair_;  // that is loaded
  int units_;         // left of it; 0: nothing is left
  WeightPlace first_{}, second_{};
  int started_ = 0;
};

}  // namespace quantspec::cuda
