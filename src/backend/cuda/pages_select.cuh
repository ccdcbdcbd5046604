// The pages of the greatest scores, one block a kv head: the rank of the last one taken by its four
// bytes, the highest first, each by a histogram; then the pages that rank above it, in order.
#pragma once

#include <cstdint>

#include "backend/cuda/device.h"

namespace quantspec::cuda {

inline constexpr int kSelectThreads = 1024;  // at most
inline constexpr int kDigitBits = 8;
inline constexpr int kDigits = 32 / kDigitBits;
inline constexpr int kBins = 1 << kDigitBits;

// Greater where SelectPagesParams ranks the page higher; equal where the page's number decides.
// Never 0, which is no page.
__device__ __forceinline__ std::uint32_t page_rank(const SequenceKv& kv, int num_pages, int page) {
  if (page >= kv.max_pages) return 0;
  // Loaded before num_pages has come: there is room for it.
  const float score = kv.page_scores[static_cast<std::size_t>(blockIdx.x) * kv.max_pages + page];
  if (page >= num_pages) return 0;
  if (page == 0) return 0xffffffff;
  if (isnan(score)) return 0xfffffffe;
  const std::uint32_t bits = __float_as_uint(score + 0.0f);  // -0 is 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}

// Over the lanes up to this one.
__device__ __forceinline__ int inclusive_sum(int x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int below = __shfl_up_sync(0xffffffff, x, lanes);
    if (threadIdx.x % 32 >= lanes) x += below;
  }
  return x;
}

// The bin of the last page taken, and of that bin's pages how many are.
struct Cut {
  int bin;
  int taken;
  bool whole;  // all of them
};

// One warp: where `taken` pages end, in bins from the highest on.
__device__ __forceinline__ void find_cut(const int* bins, int taken, Cut* cut) {
  constexpr int kMine = 8;
  static_assert(kBins == 32 * kMine);
  const int first = kBins - kMine * (static_cast<int>(threadIdx.x % 32) + 1);
  const int4 low = *reinterpret_cast<const int4*>(bins + first);
  const int4 high = *reinterpret_cast<const int4*>(bins + first + 4);
  const int mine[kMine] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) sum += mine[i];
  int above = inclusive_sum(sum) - sum;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (above < taken && taken <= above + mine[i]) {
      *cut = {first + kMine - 1 - i, taken - above, taken - above == mine[i]};
    }
    above += mine[i];
  }
}

// Pages are taken whose rank, of which `known` bits count, is above `rank`, and the first `taken`
// of those that equal it.
struct Threshold {
  std::uint32_t known;
  std::uint32_t rank;
  int taken;
};

template <int kShare>
__device__ __forceinline__ Threshold find_threshold(const std::uint32_t (&ranks)[kShare],
                                                    int count) {
  __shared__ alignas(16) int bins[kDigits][kBins];
  __shared__ Cut cuts[kDigits];
  for (int i = threadIdx.x; i < kDigits * kBins; i += blockDim.x) bins[i / kBins][i % kBins] = 0;
  __syncthreads();
  Threshold threshold{0, 0, count};
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = 32 - kDigitBits * (digit + 1);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      if (ranks[i] != 0 && (ranks[i] & threshold.known) == threshold.rank) {
        atomicAdd(&bins[digit][ranks[i] >> shift & (kBins - 1)], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x < 32) find_cut(bins[digit], threshold.taken, &cuts[digit]);
    __syncthreads();
    const Cut cut = cuts[digit];
    threshold.known |= (kBins - 1u) << shift;
    threshold.rank |= static_cast<std::uint32_t>(cut.bin) << shift;
    threshold.taken = cut.taken;
    if (cut.whole) break;  // further digits would take them all
  }
  return threshold;
}

// One warp: replaces counts by the sums of those before them.
__device__ __forceinline__ void sum_before(int* counts, int size) {
  int before = 0;
  for (int first = 0; first < size; first += 32) {
    const int at = first + threadIdx.x % 32;
    const int mine = at < size ? counts[at] : 0;
    const int through = before + inclusive_sum(mine);
    if (at < size) counts[at] = through - mine;
    before = __shfl_sync(0xffffffff, through, 31);
  }
}

// Thread t has the pages t + i * blockDim.x, i < kShare; a warp has 32 that follow each other.
// Grid: [num_kv_heads, sequences]; a multiple of 32 threads.
template <int kShare>
__global__ void __launch_bounds__(kSelectThreads) select_pages_of_head(SequenceTables sequences) {
  const SequenceKv& kv = *sequences.of(blockIdx.y);
  const int num_rows = sequences.states[blockIdx.y].num_rows;
  const int num_pages = sequences.states[blockIdx.y].num_pages;
  if (num_rows == 0 || kv.page_lists == nullptr) return;
  std::uint32_t ranks[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    ranks[i] = page_rank(kv, num_pages, threadIdx.x + i * blockDim.x);
  }
  const Threshold threshold = find_threshold(ranks, kv.pages_listed);

  // Pages above the threshold (low 16 bits) and at it (high), by warp and i: in order of pages.
  __shared__ int counts[kShare * (kSelectThreads / 32)];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::uint32_t above[kShare], at[kShare];  // of the warp, a bit a lane
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const std::uint32_t rank = ranks[i] & threshold.known;
    above[i] = __ballot_sync(0xffffffff, rank > threshold.rank);
    at[i] = __ballot_sync(0xffffffff, ranks[i] != 0 && rank == threshold.rank);
    if (lane == 0) counts[i * warps + warp] = __popc(above[i]) | __popc(at[i]) << 16;
  }
  __syncthreads();
  if (warp == 0) sum_before(counts, kShare * warps);
  __syncthreads();

  int* list = kv.page_lists + static_cast<std::size_t>(blockIdx.x) * kv.pages_listed;
  const std::uint32_t lower_lanes = (1u << lane) - 1;
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int before = counts[i * warps + warp];
    const int above_before = (before & 0xffff) + __popc(above[i] & lower_lanes);
    const int at_before = (before >> 16) + __popc(at[i] & lower_lanes);
    const bool taken = above[i] >> lane & 1 || (at[i] >> lane & 1 && at_before < threshold.taken);
    if (taken) {
      list[above_before + min(at_before, threshold.taken)] = threadIdx.x + i * blockDim.x;
    }
  }
}

}  // namespace quantspec::cuda
