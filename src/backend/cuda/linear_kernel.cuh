// The kernel of decode_linear.cu. Phases of a block of threads:
//
//   stream    every warp owns two tiles at a time and a slice of the inputs, and keeps a ring of
//             asynchronous copies of weights full from before the first activation is there until
//             the last unit of its last tile
//   prepare   activations of the block's slices go to shared memory as the format wants them,
//             multiplied with the norm's weights; the norm's factor, one for each activation row,
//             waits for the end: each slice brings its sum of squares
//   multiply  a tile's sums, slice by slice
//   finish    slices are added in order; bias, factor, and what the op does with a sum
//
// A block of `row_warps` R takes R pairs of tiles x (8 / R) slices at a time; R blocks, a cluster,
// have all 8 slices between them and read each other's sums from shared memory. A wider block reads
// fewer activations and adds more across blocks; the bits are the same.
//
// Weights are read before the kernels ahead in the stream have ended (programmatic dependent
// launch): those that write weights must not let the next kernel start early. All else is read, and
// everything is written, after the wait.
#pragma once

#include "backend/cuda/linear_finish.cuh"

namespace quantspec::cuda {

// --- prepare -------------------------------------------------------------------------------------

// A warp takes chunks of activation rows, kBatch at a time, so that their loads overlap.
// squares: [rows, chunks].
template <typename Format, bool kNormed, int kBatch>
__device__ __forceinline__ void prepare_inputs(const LinearArgs& args, const WarpRole& role,
                                               const Inputs& inputs, float* squares,
                                               WeightStream<Format>& weights) {
  const int tasks = args.num_rows * role.chunks;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < tasks || first < kLinearWarps;
       first += kBatch * kLinearWarps) {
    float4 x[kBatch], weight[kNormed ? kBatch : 1];
    int row[kBatch], chunk[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int task = first + i * kLinearWarps;
      if (task >= tasks) break;
      row[i] = args.num_rows == 1 ? 0 : task / role.chunks;
      chunk[i] = task - row[i] * role.chunks;
      const int input = (role.first_chunk + chunk[i]) * kChunkInputs + role.lane * 4;
      const float* from = args.x + static_cast<std::size_t>(args.first_row + row[i]) * args.cols;
      x[i] = load_inputs(from, input, args.cols);
      if constexpr (kNormed) weight[i] = load_inputs(args.norm.weight, input, args.cols);
    }
    weights.start(args.depth - 1);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kLinearWarps >= tasks) break;
      float4 v = x[i];
      if constexpr (kNormed) {
        const float4 w = weight[i];
        const float sum = warp_sum(fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x))));
        if (role.lane == 0) squares[first + i * kLinearWarps] = sum;
        v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      }
      Format::put(args, inputs, row[i], chunk[i] * kChunkInputs, v);
    }
  }
}

// The norm's factor of each activation row, from the squares of all blocks of the cluster. The
// order of the sum is that of the chunks, whatever the blocks.
__device__ __forceinline__ void add_squares(const LinearArgs& args, const WarpRole& role,
                                            const float* squares, float* factors) {
  for (int row = threadIdx.x / 32; row < args.num_rows; row += kLinearWarps) {
    float sum = 0.0f;
#pragma unroll 1
    for (int chunk = role.lane; chunk < args.chunks; chunk += 32) {
      int rank = 0;
      while (chunk >= slice_begin(args, (rank + 1) * role.block_slices)) ++rank;
      const int first = slice_begin(args, rank * role.block_slices);
      const int chunks = slice_begin(args, (rank + 1) * role.block_slices) - first;
      sum += in_cluster(squares, rank)[row * chunks + chunk - first];
    }
    sum = warp_sum(sum);
    if (role.lane == 0) {
      factors[row] = 1.0f / sqrtf(sum / static_cast<float>(args.cols) + args.norm.epsilon);
    }
  }
}

// --- the kernel ----------------------------------------------------------------------------------

// kTiles: n8 tiles of B, enough for num_rows * Format::kColumns columns.
template <typename Format, int kTiles>
__global__ void __launch_bounds__(kLinearThreads, 2)
    decode_linear(const __grid_constant__ LinearArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  const LinearPlaces& places = args.places;
  const WarpRole role(args, Format::kUnit);
  let_next_kernel_start();
  WeightStream<Format> weights(args, role, shared);
  weights.start(args.depth / 2);
  wait_for_previous_kernels();

  const Inputs inputs{shared + places.values,
                      reinterpret_cast<float4*>(shared + places.groups),
                      reinterpret_cast<float*>(shared + places.scales),
                      places.stride,
                      places.group_stride,
                      args.num_rows * Format::kColumns};
  auto* squares = reinterpret_cast<float*>(shared + places.squares);
  auto* factors = reinterpret_cast<float*>(shared + places.factors);
  if (args.norm.weight != nullptr) {
    prepare_inputs<Format, true, 4>(args, role, inputs, squares, weights);
  } else {
    prepare_inputs<Format, false, 8>(args, role, inputs, squares, weights);
  }
  __syncthreads();

  // A row block is finished after the products of the next: nobody waits for the barrier between.
  // Sums have room for two row blocks; whoever writes the second next has seen all finish the
  // first.
  const int half = args.block_tiles / 2, width = args.block_tiles * kTileRows;
  const int rows = args.num_rows;
  const bool plain = args.op == LinearOp::kStore || args.op == LinearOp::kAdd;
  const int room = role.block_slices * rows * width;
  float* const partials = reinterpret_cast<float*>(shared + places.partials);
  const LaneInputs<kTiles> lane_inputs = Format::template lane_inputs<kTiles>(
      args, inputs, role.first_unit * Format::kUnit - role.first_chunk * kChunkInputs);
  const int steps = role.end_unit - role.first_unit;
  float base = 0.0f;
  int parity = 0;
  const auto finish_before = [&](int block) {
    if (block == role.first_block) return;
    __syncwarp();
    cluster_wait();
    if (args.norm.weight != nullptr && block == role.first_block + role.stride) {
      add_squares(args, role, squares, factors);
      __syncthreads();
    }
    finish(args, role, block - role.stride,
           {partials + (1 - parity) * room, args.norm.weight == nullptr ? nullptr : factors, rows,
            width, args.row_shift},
           base);
  };
  int block = role.first_block;
  for (; block < args.row_blocks; block += role.stride) {
    int pair = role.row;
    do {
      TileSums<kTiles> sums = {};
      const bool there = pair < half && locate(args, block, pair).tile >= 0;
#pragma unroll 1
      for (int step = 0; there && step < steps; ++step) {
        Format::multiply(args, lane_inputs, step, weights.next(), sums);
      }
      if (pair == role.row) finish_before(block);
      if (!there) continue;
      float* to = partials + parity * room + role.slice_of_block * rows * width + pair * kTileRows;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile, to += half * kTileRows) {
        Format::for_each_sum(args, sums[tile],
                             [&](int row, int i, float sum) { to[row * width + i] = sum; });
      }
    } while ((pair += args.row_warps) < half);
    if (plain) base = plain_base(args, role, block, threadIdx.x);
    __syncwarp();
    cluster_arrive();
    parity = 1 - parity;
  }
  finish_before(block);
  if (args.row_warps > 1) {  // others read this block's sums
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace quantspec::cuda
