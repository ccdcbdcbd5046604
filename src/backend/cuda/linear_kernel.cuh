// The kernel of products with weights. Phases of a block of threads:
//
//   stream    every warp owns a segment of the inputs and a tile or two at a time, and keeps a ring
//             of asynchronous copies of weights under way from before the first activation is there
//             until the last unit of its last tiles: planes by bulk copies where there are such
//   prepare   each warp brings activations of its segment to shared memory as the format wants
//             them, multiplied with the norm's weights; the norm's factor, one for each activation
//             row, waits for the end: each segment brings its sum of squares
//   multiply  a tile's sums, segment by segment. Full matrices of 16 bits have activations
//             streamed, a unit of them beside each of weights: they are not prepared but made
//             operands here
//   finish    segments are added as a tree; bias, factor, and what the op does with a sum
//
// A block of `row_warps` R takes R pairs of tiles x (8 / R) segments at a time; R blocks, a
// cluster, have all 8 segments between them and read each other's sums from shared memory. A wider
// block prepares fewer activations and adds more across blocks; the bits are the same. With R = 1
// there is no cluster. Of sums of which other ranks have segments, too, a cluster has as many
// blocks less, and warps for which there is no segment add zeros.
//
// What a launch takes is mostly latency: of one row's product with a matrix of a few MB all is, as
// its weights are under way before the activations are written. So there is a kernel for
// each op, small enough to come soon into the instruction cache, little is computed between the
// wait for the kernels ahead and the end, and what the finish reads is asked for with the
// activations: a load that is under way in the products' loop makes them wait, as a warp has few
// scoreboards.
//
// Weights are read before the kernels ahead in the stream have ended (programmatic dependent
// launch): those that write weights must not let the next kernel start early. The norm's weights,
// too; all else is read, and everything is written, after the wait.
#pragma once

#include "backend/cuda/linear_finish.cuh"

namespace quantspec::cuda {

// --- prepare -------------------------------------------------------------------------------------

// A warp takes its own segment, of every row_warps-th activation row, kBatch bands at a time, so
// that they overlap. So where a block has all segments, a warp waits for no other before it
// multiplies. kAligned: rows are, to 16 bytes.
template <typename Format, bool kNormed, bool kAligned>
class Preparation {
 public:
  // Before other kernels are waited for: the norm's weights are there. And before a ring is
  // started, behind which they would come late. A kernel of a row or a few finds out where the
  // first batch lies, too, afresh, or the compiler does it after the wait.
  __device__ Preparation(const LinearArgs& args, const WarpRole& role)
      : args_(args), role_(role), row_(role.row), band_(role.first_of_segment) {
    load_weights();
    if constexpr (kAligned) {
      const Part part = part_of(row_of(row_));
      first_ = {afresh(part.from), afresh(part.left)};
    }
  }

  // Asks for the first batch.
  __device__ void ask() {
    if constexpr (kAligned) {
      if (row_ < args_.num_rows) load(first_, next_);
    } else {
      load(next_);
    }
  }
  // After ask(). squares: [block_segments, rows], sums of a segment. Calls between() when loads of
  // a batch are under way.
  template <typename F>
  __device__ void run(const Inputs& inputs, float* squares, const F& between) {
    float square = 0.0f;
#pragma unroll 1
    while (row_ < args_.num_rows) {
      const int row = row_, band = band_;
      float4 x[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) x[i] = next_[i];
      band_ += kBatch;
      if (band_ >= role_.end_of_segment) {
        band_ = role_.first_of_segment;
        row_ += role_.row_warps;
      }
      load(next_);
      between();
      if constexpr (kNormed) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const float4 v = x[i], w = weight_[i];
          square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
          x[i] = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
        }
        if (band_ != band) load_weights();
        if (row_ != row) {
          square = warp_sum(square);
          if (role_.lane == 0) squares[role_.segment_of_block * args_.num_rows + row] = square;
          square = 0.0f;
        }
      }
      Format::template put<kBatch>(inputs, row, band, role_.end_of_segment - band, x);
    }
  }

 private:
  static constexpr int kBatch = 4;
  // What a lane reads of a row in batches, and how many inputs its segment has from there on.
  struct Part {
    const float* from;
    int left;
  };
  __device__ const float* row_of(int row) const {
    return args_.x + static_cast<std::size_t>(args_.first_row + row) * args_.x_stride;
  }
  __device__ void load(float4 (&x)[kBatch]) const {
    if (row_ < args_.num_rows) load(part_of(row_of(row_)), x);
  }
  __device__ void load_weights() {
    if constexpr (kNormed) load(part_of(args_.norm.weight), weight_);
  }
  // The batch from band_ on of a row.
  __device__ Part part_of(const float* row) const {
    const int first = (role_.first_band + band_) * kBandInputs + role_.lane * 4;
    const int end = (role_.first_band + role_.end_of_segment) * kBandInputs;
    return {row + first, min(end, args_.cols) - first};
  }
  __device__ void load(Part part, float4 (&x)[kBatch]) const {
    load_inputs(part.from, part.left, kAligned || args_.x_stride % 4 == 0, x);
  }

  const LinearArgs& args_;
  const WarpRole& role_;
  int row_, band_;  // the next; band_: of the block
  Part first_;      // kAligned
  float4 weight_[kBatch], next_[kBatch];
};

// Where they are; of streamed ones, nothing.
template <typename Format>
__device__ __forceinline__ Inputs prepared_inputs(const LinearArgs& args, std::byte* shared) {
  const LinearPlaces& places = args.places;
  if constexpr (kStreamed<Format>) {
    return {};
  } else {
    return {shared + places.values, reinterpret_cast<float4*>(shared + places.groups),
            places.stride, places.group_stride, args.num_rows * Format::kColumns};
  }
}

// --- the kernel ----------------------------------------------------------------------------------

// What a kernel knows of its op.
template <typename Format, int kTiles, int kOp>
__device__ __forceinline__ int early_stages(const LinearArgs& args) {
  return early_stages(WeightStream<Format, kTiles, kOp>::kBulk, Format::kSizes.large_stages(),
                      kOp == kAnyOp ? args.op : static_cast<LinearOp>(kOp), args.bands, args.depth);
}

// kOp: the op or kAnyOp. kTiles: tiles of activations, Format::max_rows(kTiles) rows. kAlone:
// is_alone() (linear_launch.cuh), and the kernel knows it.
template <typename Format, int kTiles, int kOp, bool kAlone>
__global__ void __launch_bounds__(kLinearThreads, kStreamed<Format> ? 1 : 2)
    decode_linear(const __grid_constant__ LinearArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const LinearPlaces& places = args.places;
  constexpr bool kPart = kOp == static_cast<int>(LinearOp::kPart);
  const WarpRole role(args, Format::kUnit, Format::kSizes.band_step(), kAlone, kPart);
  WeightStream<Format, kTiles, kOp> weights(args, role, shared);
  const Inputs inputs = prepared_inputs<Format>(args, shared);
  auto* squares = reinterpret_cast<float*>(shared + places.squares);
  // NOTE: the next kernel's blocks come when this one's activations are there (streamed ones: when
  // they have been asked for). Earlier, what they
  // begin with delays the loads, and the end of the kernel ahead: measured, 30% of a
  // 4096 x 4096 product at 4 bits, 5% of a layer's products. Where there is no norm it is as well
  // to let them come before the preparation. Never before the wait: attention reads early what the
  // kernels ahead of this one wrote.
  const bool normed =
      !is_op<kOp>(args, LinearOp::kAdd) && !kPart && (kAlone || args.norm.weight != nullptr);
  Ahead ahead;  // of the first row block before the activations, with which it comes
  const auto prepare = [&]<bool kNormed>() {
    Preparation<Format, kNormed, kAlone> preparation(args, role);
    weights.start(early_stages<Format, kTiles, kOp>(args));
    wait_for_previous_kernels();
    preparation.ask();
    if (!kNormed) let_next_kernel_start();
    ahead = look_ahead<kOp>(args, role, role.first_block);
    preparation.run(inputs, squares, [&] { weights.start_one(); });
    if (kNormed) let_next_kernel_start();
  };
  if constexpr (kStreamed<Format>) {
    weights.start();
    wait_for_previous_kernels();
    weights.start_inputs(normed, kAlone || args.x_stride % 4 == 0);
    let_next_kernel_start();
    ahead = look_ahead<kOp>(args, role, role.first_block);
  } else {
    if (normed) {
      prepare.template operator()<true>();
    } else {
      prepare.template operator()<false>();
    }
    weights.start();
    if (role.row_warps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // A row block is finished after the products of the next: nobody waits for the barrier between.
  // Sums have room for two row blocks; whoever writes the second next has seen all finish the
  // first. Where they have room for one, all wait until it is finished.
  const int groups = args.block_tiles / Format::kTogether, width = args.block_tiles * kTileRows;
  const int rows = args.num_rows;
  const bool one_buffer = kStreamed<Format> && args.buffers == 1;
  const int room = one_buffer ? 0 : role.block_segments * rows * width;
  float* const partials = reinterpret_cast<float*>(shared + places.partials);
  auto lane_inputs = [&] {
    if constexpr (kStreamed<Format>) {
      return typename Format::template OperandPlaces<kTiles>(args, normed, role.row == 0);
    } else {
      return Format::template lane_inputs<kTiles>(
          args, inputs, role.first_unit * Format::kUnit - role.first_band * kBandInputs);
    }
  }();
  const int units = role.end_unit - role.first_unit;
  int parity = 0;
  for (int block = role.first_block;; block += role.stride) {
    const bool last = block >= args.row_blocks;
    int group = role.row;
    do {
      typename Format::template Sums<kTiles> sums = {};
      const bool there = !last && group < groups;
#pragma unroll 1
      for (int unit = 0; there && unit < units; unit += Format::kStageUnits) {
        if constexpr (kStreamed<Format>) {
          constexpr bool kMayNorm = kOp != static_cast<int>(LinearOp::kAdd) && !kPart;
          Format::template multiply<kMayNorm>(lane_inputs, weights.next(), sums,
                                              [&] { weights.give_back(); });
        } else if constexpr (Format::kStageUnits == 1) {
          Format::multiply(lane_inputs, unit, weights.next(), sums);
          weights.give_back();
        } else {
          Format::multiply(lane_inputs, unit, units - unit, weights.next(), sums);
          weights.give_back();
        }
      }
      if (group == role.row && block != role.first_block) {
        __syncwarp();
        if (role.cluster_shift > 0) {
          cluster_wait();
        } else {
          __syncthreads();
        }
        const Sums<kPart> of_before{partials + (1 - parity) * room,
                                    normed ? squares : nullptr,
                                    afresh(rows),
                                    width,
                                    role.row_shift,
                                    role.cluster_shift};
        finish<kOp, kAlone>(args, role, block - role.stride, of_before, ahead);
        if (one_buffer) __syncthreads();
      }
      if (group == role.row && !last && block != role.first_block) {
        ahead = look_ahead<kOp>(args, role, block);
      }
      if (!there) continue;
      if constexpr (kStreamed<Format>) {
        float* const of_segment = squares + role.segment_of_block * rows;
        lane_inputs.for_each_square(args, [&](int row, float sum) { of_segment[row] = sum; });
      }
      float* const to = partials + parity * room + role.segment_of_block * rows * width;
#pragma unroll
      for (int tile = 0; tile < Format::kTogether; ++tile) {
        const int first = (tile * groups + group) * kTileRows;
        Format::for_each_sum(args, sums[tile], [&](int row, int i, auto sum) {  // or two
          *reinterpret_cast<decltype(sum)*>(to + sum_place(row, first + i, width)) = sum;
        });
      }
    } while (!last && (group += role.row_warps) < groups);
    if (last) break;
    __syncwarp();
    if (role.cluster_shift > 0) cluster_arrive();
    parity = 1 - parity;
  }
  if (role.cluster_shift > 0) {  // others read this block's sums
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

}  // namespace quantspec::cuda
