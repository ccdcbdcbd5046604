// What the kernels of ranks work on, and their launches (ranks.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"

namespace quantspec::cuda {

class Device;

inline constexpr int kMostRanks = 8;
// Four floats each, of a rank in a step: what is more goes in pieces, a step each.
inline constexpr int kPieceQuads = 256 * 1024;
constexpr std::size_t inbox_bytes(int ranks) {
  return std::size_t{2} * ranks * kPieceQuads * sizeof(float4);
}

// Blocks of a launch, always as many. Of ranks that share a GPU all but one may wait while that
// one's products need multiprocessors, so they take few.
inline constexpr int kRankBlocks = 64, kSharingBlocks = 8;
inline constexpr int kRankThreads = 256;

// Of ranks that exchange something, by what they exchange (ranks.h), at most.
inline constexpr int kMostCircles = 4;

// In device memory.
struct RankCounts {
  std::uint32_t steps[kMostCircles][kRankBlocks];  // that a block has taken part in
  int given_up;                                    // some kernel has
  alignas(16) float4 greeting;                     // what ranks say that only meet
};
// In the host's memory, which the GPU reads now and then while it waits.
struct RankSigns {
  int left;     // 1 + a rank that has left; written by that rank's host
  int missing;  // 1 + the rank whose words did not come; written by this rank's kernels
};

// Of a circle, by whose ranks all is counted but `ids`: which of all ranks they are.
struct RankPlaces {
  int rank, size;
  int ids[kMostRanks];
  int blocks;
  bool alone;                   // no other rank is on this GPU
  float4* inboxes[kMostRanks];  // by rank: [2 steps, ranks, kPieceQuads]
  std::uint32_t* steps;         // of the circle in `counts`
  RankCounts* counts;           // this rank's
  RankSigns* signs;             // likewise
  std::uint64_t patience;       // nanoseconds
};

// Rows of bytes, `stride`s apart, from and to the memory of any ranks.
struct RowCopy {
  const void* from;
  std::size_t from_stride;
  void* to;
  std::size_t to_stride, bytes;
};
struct RowCopies {
  int rows;
  int count = 0;
  RowCopy of[kMostRanks];

  void add(const RowCopy& copy) { of[count++] = copy; }
};
void launch_copies(const RowCopies& copies, cudaStream_t stream);

// What attention of ranks that share a context left of a launch's splits (attention_shape.cuh), and
// where that of all splits comes to lie. Heads are KV heads: a rank has all of the context's, and
// wants those of its queries, `each` of them, which ranks that are alike have in common.
struct RankPartials {
  const float2* sums;  // [sequence, head, column block, place, block_columns]
  const float* rows;   // [.., head_dim]
  float2* all_sums;    // [sequence, own head, split, column]
  float* all_rows;     // [.., head_dim]
  int sequences, heads, each, alike;
  int first_unit;  // unit_number() of the layer's first head
  int column_blocks, block_columns, columns;
  RankSplits splits;
  int places, head_dim;
};

// As Ranks::add_sums(), gather() and give_partials().
void launch_add_sums(const RankPlaces& places, const Device& device, const float* sums,
                     const float* bias, int rows, int outputs, float* x);
void launch_gather(const RankPlaces& places, const Device& device, const float* own, int rows,
                   int outputs, float* all);
void launch_partials(const RankPlaces& places, const Device& device, const RankPartials& partials);
// As Ranks::meet_on_gpus().
void launch_meeting(const RankPlaces& places, const Device& device);
// Loads them, so that no launch has to wait for the GPU.
void load_rank_kernels(int size);

}  // namespace quantspec::cuda
