// One row of the vocabulary, worked on by a row of blocks: a cluster on 9.0, a single block before,
// where the same code runs with no others to talk to.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

namespace quantspec::cuda {

inline constexpr int kRowThreads = 512;
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kMostRowBlocks = 8;
inline constexpr int kBlocksPerSm = 2;  // registers for: the 17 rows of a long round are 136 blocks

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

// Shared memory through which the threads of a row combine what they found.
struct RowExchange {
  std::uint64_t warps[kRowWarps];
  std::uint64_t blocks[2][kMostRowBlocks];  // in turn, so that one sync() serves an exchange
};

struct Plus {
  __device__ double operator()(double a, double b) const { return a + b; }
};

// Of this thread: its place among the blocks of its row. What is exchanged is of 8 bytes.
class RowBlocks {
 public:
  __device__ explicit RowBlocks(RowExchange& exchange) : exchange_(exchange) {
#if __CUDA_ARCH__ >= 900
    rank_ = static_cast<int>(cooperative_groups::this_cluster().block_rank());
    count_ = static_cast<int>(cooperative_groups::this_cluster().num_blocks());
    asm volatile("barrier.cluster.arrive.relaxed.aligned;");  // enter() waits for it
#endif
  }

  __device__ int rank() const { return rank_; }
  __device__ int count() const { return count_; }
  __device__ int row() const { return static_cast<int>(blockIdx.x) / count_; }
  __device__ int thread() const { return rank_ * kRowThreads + static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return count_ * kRowThreads; }

  // All threads of all blocks, shared memory included.
  __device__ void sync() {
#if __CUDA_ARCH__ >= 900
    enter();
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }

  // The shared variable of another block. REQUIRES: a sync() or gather() before, and one after its
  // last use, until which blocks stay.
  template <typename T>
  __device__ T& of_block(T& shared, int block) const {
#if __CUDA_ARCH__ >= 900
    return *cooperative_groups::this_cluster().map_shared_rank(&shared, block);
#else
    return shared;
#endif
  }

  // combine() over the threads of a warp, of a block (in warp 0). Commutative, and in one order.
  template <typename T, typename Combine>
  static __device__ T in_warp(T value, const Combine& combine) {
    for (int distance = 16; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
  }
  template <typename T, typename Combine>
  __device__ T in_block(T value, const Combine& combine) const {
    static_assert(kRowWarps == 16 && sizeof(T) == 8);
    value = in_warp(value, combine);
    if (lane_id() == 0) exchange_.warps[warp_id()] = std::bit_cast<std::uint64_t>(value);
    __syncthreads();
    if (warp_id() != 0) return value;
    value = std::bit_cast<T>(exchange_.warps[lane_id() % kRowWarps]);
    for (int distance = kRowWarps / 2; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
  }

  // Warp 0 of every block brings `value`; all threads get those of all blocks, [count()]. A sync().
  template <typename T>
  __device__ const T* gather(T value) {
    static_assert(sizeof(T) == 8);
    std::uint64_t* slots = exchange_.blocks[turn_];
    turn_ ^= 1;
    enter();
    if (warp_id() == 0 && lane_id() < count_) {
      of_block(slots[rank_], lane_id()) = std::bit_cast<std::uint64_t>(value);
    }
    sync();
    return reinterpret_cast<const T*>(slots);
  }

  // combine() over all threads of the row, for all of them. A sync().
  template <typename T, typename Combine>
  __device__ T in_row(T value, const Combine& combine) {
    const T* blocks = gather(in_block(value, combine));
    value = blocks[0];
    for (int block = 1; block < count_; ++block) value = combine(value, blocks[block]);
    return value;
  }
  __device__ double sum(double value) { return in_row(value, Plus{}); }
  __device__ std::uint64_t largest(std::uint64_t value) {
    return in_row(value, [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; });
  }
  __device__ std::uint64_t least(std::uint64_t value) {
    return in_row(value, [](std::uint64_t a, std::uint64_t b) { return a < b ? a : b; });
  }

 private:
  // Before the first use of another block's memory: that block has begun.
  __device__ void enter() {
#if __CUDA_ARCH__ >= 900
    if (!entered_) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    entered_ = true;
#endif
  }

  RowExchange& exchange_;
  bool entered_ = false;
  int rank_ = 0;
  int count_ = 1;
  int turn_ = 0;
};

// Where a walk over weighed items ended, and what was left to walk before that item; index -1: no
// item weighs anything.
struct Walked {
  int index;
  double left;
};

// A walk over items 0 .. count - 1 in order, by one warp, a run of consecutive items each lane. It
// weighs them when it is made.
template <typename Weight>
class Walk {
 public:
  __device__ Walk(int count, const Weight& weight) : weight_(weight) {
    const int run = (count + 31) / 32;
    begin_ = min(lane_id() * run, count);
    end_ = min(begin_ + run, count);
    for (int i = begin_; i < end_; ++i) own_ += weight_(i);
    double through = own_;
    for (int distance = 1; distance < 32; distance *= 2) {
      const double other = __shfl_up_sync(~0u, through, distance);
      if (lane_id() >= distance) through += other;
    }
    total_ = __shfl_sync(~0u, through, 31);
    before_ = __shfl_up_sync(~0u, through, 1);
    if (lane_id() == 0) before_ = 0;
  }

  __device__ double total() const { return total_; }

  // Takes from `left` what each item weighs, up to the first that `reaches(left, weight)`; the last
  // of any weight if rounding leads past the end. Items of no weight are passed over.
  template <typename Reaches>
  __device__ Walked find(double left, const Reaches& reaches) const {
    left -= before_;
    const unsigned any = __ballot_sync(~0u, own_ > 0);
    const unsigned reached = __ballot_sync(~0u, own_ > 0 && reaches(left, own_));
    if (any == 0) return {-1, left};
    const int lane = reached != 0 ? __ffs(reached) - 1 : 31 - __clz(any);
    int index = -1;
    double left_there = left;
    if (lane_id() == lane) {
      for (int i = begin_; i < end_; ++i) {
        const double here = weight_(i);
        if (!(here > 0)) continue;
        index = i;
        left_there = left;
        if (reaches(left, here)) break;
        left -= here;
      }
    }
    return {__shfl_sync(~0u, index, lane), __shfl_sync(~0u, left_there, lane)};
  }

 private:
  const Weight& weight_;
  int begin_, end_;
  double own_ = 0, before_, total_;
};

// The same over the few parts that the blocks of a row bring, by any thread for itself.
template <typename Reaches>
__device__ Walked walk_parts(const double* parts, int count, double left, const Reaches& reaches) {
  Walked walked{-1, left};
  for (int block = 0; block < count; ++block) {
    if (!(parts[block] > 0)) continue;
    walked = {block, left};
    if (reaches(left, parts[block])) break;
    left -= parts[block];
  }
  return walked;
}
__device__ inline double sum_parts(const double* parts, int count) {
  double sum = 0;
  for (int block = 0; block < count; ++block) sum += parts[block];
  return sum;
}

// A block's part of a row of probabilities or logits.
struct RowPart {
  float* values;
  int count;

  __device__ bool aligned() const { return reinterpret_cast<std::uintptr_t>(values) % 16 == 0; }
  // f(value, index) of every value, f(value&, index) in update(). Quadruples are spread over the
  // threads, and what is left of them.
  template <typename F>
  __device__ __forceinline__ void read(const F& f) const {
    const int quadruples = aligned() ? count / 4 : 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < quadruples; i += kRowThreads) {
      const float4 four = reinterpret_cast<const float4*>(values)[i];
      f(four.x, 4 * i);
      f(four.y, 4 * i + 1);
      f(four.z, 4 * i + 2);
      f(four.w, 4 * i + 3);
    }
    for (int i = 4 * quadruples + threadIdx.x; i < count; i += kRowThreads) f(values[i], i);
  }
  template <typename F>
  __device__ __forceinline__ void update(const F& f) const {
    const int quadruples = aligned() ? count / 4 : 0;
#pragma unroll 2
    for (int i = threadIdx.x; i < quadruples; i += kRowThreads) {
      float4 four = reinterpret_cast<const float4*>(values)[i];
      f(four.x, 4 * i);
      f(four.y, 4 * i + 1);
      f(four.z, 4 * i + 2);
      f(four.w, 4 * i + 3);
      reinterpret_cast<float4*>(values)[i] = four;
    }
    for (int i = 4 * quadruples + threadIdx.x; i < count; i += kRowThreads) f(values[i], i);
  }
};

}  // namespace quantspec::cuda
