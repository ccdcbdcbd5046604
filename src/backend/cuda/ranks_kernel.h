// What the kernels of ranks work on, and their launches (ranks.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace quantspec::cuda {

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

// In device memory.
struct RankCounts {
  std::uint32_t steps[kRankBlocks];  // that a block has taken part in
  int given_up;                      // some kernel has
  alignas(16) float4 greeting;       // what ranks say that only meet
};
// In the host's memory, which the GPU reads now and then while it waits.
struct RankSigns {
  int left;     // 1 + a rank that has left; written by that rank's host
  int missing;  // 1 + the rank whose words did not come; written by this rank's kernels
};

struct RankPlaces {
  int rank, size;
  int blocks;
  bool alone;                   // no other rank is on this GPU
  float4* inboxes[kMostRanks];  // by rank: [2 steps, ranks, kPieceQuads]
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

// As Ranks::add_sums() and gather().
void launch_add_sums(const RankPlaces& places, cudaStream_t stream, bool overlaps,
                     const float* sums, const float* bias, int rows, int outputs, float* x);
void launch_gather(const RankPlaces& places, cudaStream_t stream, bool overlaps, const float* own,
                   int rows, int outputs, float* all);
// As Ranks::meet_on_gpus().
void launch_meeting(const RankPlaces& places, cudaStream_t stream);
// Loads them, so that no launch has to wait for the GPU.
void load_rank_kernels(int size);

}  // namespace quantspec::cuda
