// Which tiles a warp of the kernel of linear_kernel.cuh works on, and how their weights come to it.
#pragma once

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// --- which rows ----------------------------------------------------------------------------------

// The op of a kernel that is made for one; kAnyOp: args.op.
inline constexpr int kAnyOp = -1;
template <int kOp>
__device__ __forceinline__ bool is_op(const LinearArgs& args, LinearOp op) {
  return kOp == kAnyOp ? args.op == op : kOp == static_cast<int>(op);
}

struct TilePlace {
  int source;
  int tile;  // of the source; beyond the end: the last
};

// Which head of its source a row block is, or is a part of.
__device__ __forceinline__ int head_of(const QkvArgs& qkv, int block) {
  return static_cast<int>(static_cast<unsigned>(block) * qkv.head_of >> 16);
}

// Tile i of a row block.
template <int kOp>
__device__ __forceinline__ TilePlace locate(const LinearArgs& args, int block, int i) {
  TilePlace place{0, block * args.block_tiles + i};
  if (is_op<kOp>(args, LinearOp::kGateUp)) {
    const int half = args.block_tiles / 2;
    place.source = i >= half;
    place.tile = block * half + (i < half ? i : i - half);
  } else if (is_op<kOp>(args, LinearOp::kQkv)) {
    while (block >= args.sources[place.source].blocks) block -= args.sources[place.source++].blocks;
    const int half = args.qkv.half_tiles;
    if (half == 0) {
      place.tile = block * args.block_tiles + i;
    } else {
      const int head_half = args.qkv.shape.head_dim / 32;
      const int head = head_of(args.qkv, block);
      place.tile = head * 2 * head_half + (block - head * args.qkv.parts) * half +
                   (i < half ? i : head_half + i - half);
    }
  }
  place.tile = min(place.tile, args.sources[place.source].tiles - 1);
  return place;
}
// The tile that is taken together with one: i + block_tiles / 2.
template <int kOp>
__device__ __forceinline__ TilePlace partner(const LinearArgs& args, TilePlace place) {
  place.source += is_op<kOp>(args, LinearOp::kGateUp);
  place.tile = min(place.tile + args.pair_tiles, args.sources[place.source].tiles - 1);
  return place;
}

// --- stream --------------------------------------------------------------------------------------

// What a warp is: its place in the block, its segment.
struct WarpRole {
  int lane;
  // Of the arguments; what a kernel without clusters knows.
  int row_warps, row_shift, cluster_shift;
  int row;               // first of the pairs of tiles of a row block that it takes
  int segment_of_block;  // of block_segments
  int block_segments;
  int rank;  // of the block in its cluster
  int first_unit, end_unit;
  int first_band;                        // of the block
  int first_of_segment, end_of_segment;  // bands, since first_band
  int first_block, stride;               // row blocks that it takes

  // Of a format of such units and steps of bands. part: of kPart.
  __device__ WarpRole(const LinearArgs& args, int unit, int band_step, bool alone, bool part) {
    const auto begin = [&](int segment) {
      if (!part) return segment_begin_of_all(args.bands, band_step, args.odd_segment, segment);
      // Beyond the last: where that ends.
      return segment_begin(args.bands, band_step, args.segments, min(segment, args.segments));
    };
    const int warp = warp_index();
    lane = threadIdx.x % 32;
    row_warps = alone ? 1 : args.row_warps;
    row_shift = alone ? 0 : args.row_shift;
    cluster_shift = part && !alone ? args.cluster_shift : row_shift;
    row = warp & (row_warps - 1);
    segment_of_block = warp >> row_shift;
    block_segments = kSegments >> row_shift;
    rank = blockIdx.x & ((1 << cluster_shift) - 1);
    const int segment = rank * block_segments + segment_of_block;
    first_unit = begin(segment) * kBandInputs / unit;
    end_unit = min(begin(segment + 1) * kBandInputs / unit, args.units);
    first_band = begin(rank * block_segments);
    first_of_segment = begin(segment) - first_band;
    end_of_segment = begin(segment + 1) - first_band;
    first_block = blockIdx.x >> cluster_shift;
    stride = gridDim.x >> cluster_shift;
  }
};

// Whether planes come by bulk copies, on barriers in shared memory: what is under way then does not
// stand in the way of activations' loads.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
#else
inline constexpr bool kBulkCopies = false;
#endif

// Waits until at most so many of a thread's copies are under way; more than 6 are 6.
__device__ __forceinline__ void wait_until_pending(int copies) {
  if (copies <= 2) {
    if (copies == 2) {
      wait_async_copies<2>();
    } else if (copies == 1) {
      wait_async_copies<1>();
    } else {
      wait_async_copies<0>();
    }
  } else if (copies == 3) {
    wait_async_copies<3>();
  } else if (copies == 4) {
    wait_async_copies<4>();
  } else if (copies == 5) {
    wait_async_copies<5>();
  } else {
    wait_async_copies<6>();
  }
}

// Of a stage of a ring: weights, then streamed activations, then the norm's weights.
template <typename Format>
__device__ int stage_bytes(const LinearArgs& args) {
  return stage_bytes(Format::kStageBytes, Format::kStreamedBytes, args.num_rows,
                     args.norm.weight != nullptr);
}

// A warp's ring: stages in the order in which the warp multiplies them, all but the one that it
// works on under way; all, where it gives a stage back before it asks for the next. kTiles:
// those of activations, as of the kernel. Format::kTogether tiles of a row block are taken
// together, i and i + block_tiles / 2 where they are two.
template <typename Format, int kTiles, int kOp>
class WeightStream {
 public:
  static constexpr bool kBulk = Format::kPlanes && kBulkCopies;

  __device__ WeightStream(const LinearArgs& args, const WarpRole& role, std::byte* shared)
      : args_(args),
        role_(role),
        stage_bytes_(stage_bytes<Format>(args)),
        ring_(shared_address(shared) + warp_index() * args.depth * stage_bytes_),
        end_(ring_ + args.depth * stage_bytes_),
        writing_(ring_),
        reading_(ring_),
        block_(role.first_block),
        group_(role.row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if constexpr (kBulk) {
      barriers_ = reinterpret_cast<std::uint64_t*>(shared + args.places.barriers) +
                  warp_index() * args.depth;
      written_ = read_ = barriers_;
      if (elect_one()) {
#pragma unroll 1
        for (int i = 0; i < args.depth; ++i) barrier_init(barriers_ + i, 1);
        barrier_init_fence();
      }
      __syncwarp();
    }
#endif
    if (role.row < args.block_tiles / Format::kTogether) begin_tiles();
  }

  // Starts copies until so many have been, at most as many as there is room for.
  __device__ void start(int count) {
#pragma unroll 1
    while (started_ < min(count, most())) {
      if constexpr (kStreamed<Format>) begun_ += units_ > 0;
      load();
      ++started_;
    }
  }
  __device__ void start_one() { start(started_ + 1); }
  __device__ void start() { start(most()); }

  // Streamed activations, of the stages that have been started without; the first is there when the
  // weights of all are. normed: whether the norm's weights are there; aligned: whether rows are, to
  // 16 bytes.
  __device__ void start_inputs(bool normed, bool aligned) {
    inputs_ = InputPlace{Format::begin_inputs(args_), normed, aligned, true};
    int unit = role_.first_unit;
#pragma unroll 1
    for (int i = 0; i < started_; ++i) {
      if (i < begun_) {
        Format::template load_inputs<kTiles>(args_, inputs_, unit, ring_ + i * stage_bytes_);
      }
      commit_async_copies();
      if (++unit >= role_.end_unit) unit = role_.first_unit;
    }
  }

  // The next stage, to be given back before the one after it is asked for.
  __device__ std::uint32_t next() {
    const std::uint32_t stage = reading_;
    reading_ += stage_bytes_;
    if constexpr (kBulk) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      barrier_wait(read_, parity_);
#endif
      ++read_;
      if (reading_ == end_) {
        read_ = barriers_;
        parity_ ^= 1;
      }
    } else {
      wait_until_pending(most() - 1);
      __syncwarp();
      if constexpr (!kGivesBack) load();  // over the stage before
    }
    if (reading_ == end_) reading_ = ring_;
    return stage;
  }
  __device__ void give_back() {
    if constexpr (kGivesBack) {
      if constexpr (kBulk) {
        loads_before_copies();
      } else {
        __syncwarp();
      }
      load();
    }
  }

 private:
  static constexpr bool kGivesBack = kBulk || kStreamed<Format>;
  __device__ int most() const { return kGivesBack ? args_.depth : args_.depth - 1; }
  // Begins the tiles at block_, group_, if there are.
  __device__ void begin_tiles() {
    if (block_ >= args_.row_blocks) return;
    units_ = role_.end_unit - role_.first_unit;
    TilePlace place = locate<kOp>(args_, block_, group_);
#pragma unroll
    for (int i = 0; i < Format::kTogether; ++i) {
      if (i > 0) place = partner<kOp>(args_, place);
      places_[i] = Format::begin(args_, args_.sources[place.source], place.tile, role_.first_unit);
    }
  }

  __device__ void load() {
    if constexpr (kBulk) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      if (units_ <= 0) return;
      const int units = min(units_, Format::kStageUnits);
      Format::load_bulk(places_, units, writing_, written_);
      writing_ += Format::kStageBytes;
      ++written_;
      if (writing_ == end_) {
        writing_ = ring_;
        written_ = barriers_;
      }
      advance(units);
#endif
    } else {
      if (units_ > 0) {
#pragma unroll
        for (int tile = 0; tile < Format::kTogether; ++tile) {
          Format::load(args_, places_[tile],
                       writing_ + tile * (Format::kStageBytes / Format::kTogether));
        }
        if constexpr (kStreamed<Format>) {
          if (inputs_.there) {
            Format::template load_inputs<kTiles>(args_, inputs_, role_.end_unit - units_, writing_);
          }
        }
        advance(1);
      }
      if (!kStreamed<Format> || inputs_.there) commit_async_copies();
      writing_ += stage_bytes_;
      if (writing_ == end_) writing_ = ring_;
    }
  }
  __device__ void advance(int units) {
    units_ -= units;
    if (units_ > 0) return;
    group_ += role_.row_warps;
    if (group_ >= args_.block_tiles / Format::kTogether) {
      group_ = role_.row;
      block_ += role_.stride;
    }
    begin_tiles();
  }

  const LinearArgs& args_;
  const WarpRole& role_;
  int stage_bytes_;
  std::uint32_t ring_, end_, writing_, reading_;
  std::uint64_t *barriers_ = nullptr, *written_ = nullptr, *read_ = nullptr;
  std::uint32_t parity_ = 0;
  int block_, group_;  // that is loaded
  int units_ = 0;      // left of it; 0: nothing is left
  WeightPlace places_[Format::kTogether] = {};
  int started_ = 0;
  int begun_ = 0;  // streamed: of those, stages that there are
  InputPlace inputs_ = {};
};

}  // namespace quantspec::cuda
