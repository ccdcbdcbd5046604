// Products with weights of more activation rows than the kernel of linear_kernel.cuh takes at a
// time, which would read the weights again for every kMaxRows of them. The bits are that kernel's.
#pragma once

#include "backend/cuda/linear_args.h"
#include "backend/cuda/tuning.h"

namespace quantspec::cuda {

// --- how the work is shared out ------------------------------------------------------------------
//
// A block of threads takes items one after the other: of a row block some segments that are a
// subtree of the sum over segments (kSegments). It adds them, and what it has then, a node of the
// tree, is all there is to an item. Where an item has all segments, its sums need no memory.

struct BatchSharing {
  int run;                                       // segments of an item, a power of two
  int items;                                     // of a row block one after the other
  int blocks;                                    // of threads
  int nodes() const { return kSegments / run; }  // of a row block
  bool operator==(const BatchSharing&) const = default;
};
// Of the tiles of an op, block_tiles of a row block. product_time: what products of a segment take,
// in eighths of what a multiprocessor's share of the memory's bandwidth takes for its weights. From
// 8 on the memory is not the bound: more would change nothing.
BatchSharing share_out_batch(int num_sms, int tiles, int block_tiles, int product_time);

// --- running -------------------------------------------------------------------------------------

// From which on it is used, with so many tiles of outputs and bands of inputs: of bf16 and fp16, of
// planes.
int least_batch_rows(const Tuning& tuning, int tiles, int bands);
int least_batch_rows_of_planes(const Tuning& tuning, int tiles, int bands);
// Whether it is used for a launch of so many rows of codes.
bool batches_codes(const Tuning& tuning, int rows, int bands);

// Of Scratch::kBatch that an op takes, at most; in_memory: whose sums always come to memory.
std::size_t batch_scratch_bytes(const Device& device, int inputs, int tiles, bool in_memory);

// Whether this GPU has the kernel.
bool batches_rows(const Device& device);

// The op's rows [args.first_row, end), with weights of bf16 or fp16, or with the upper or both
// planes of groups of 128. Weights are read again for each 160 rows of bf16, 64 of fp16 and of
// planes, 32 of codes. args: what decode_linear.cu fills in, args.bands those of all inputs.
void run_batch(OpLaunches& op, const LinearArgs& args, DType dtype, int end);
void run_batch_of_planes(OpLaunches& op, const LinearArgs& args, bool both, int end);

}  // namespace quantspec::cuda
