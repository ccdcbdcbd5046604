// Rows of logits: their largest, and moving them.
#pragma once

#include <cstdint>

#include "backend/cuda/sampling.h"
#include "backend/cuda/sampling_row.cuh"

namespace quantspec::cuda {

// --- lanes ---------------------------------------------------------------------------------------

// Which lane's a row of the target's is. By all threads of a block.
struct LaneRow {
  const RoundLane* lane;  // null: it is nobody's
  int row;                // of the lane's

  __device__ static LaneRow of(const LaneTable& table, int row) {
    int lane = 0;
    if (table.count > 1) {  // the last that begins here or before: empty ones begin with the next
      int begun = 0;
      for (int first = 0; first < table.count; first += kRowThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        begun += __syncthreads_count(i < table.count &&
                                     table.lanes[i].first_row - table.first_row <= row);
      }
      lane = begun - 1;
    }
    const RoundLane& found = table.lanes[lane];
    row -= found.first_row - table.first_row;
    return {row <= found.draft_len ? &found : nullptr, row};
  }
};

// Orders as the logit does, -0 as 0; NaN above everything: what is added to becomes the positive
// one.
__device__ __forceinline__ std::uint32_t logit_order(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}

// The largest order that a thread has seen, and where first. REQUIRES: it sees ascending tokens.
struct ThreadLargest {
  std::uint32_t order = 0;
  TokenId token = 0;

  __device__ __forceinline__ void see(float logit, TokenId there) {
    const std::uint32_t other = logit_order(logit);
    if (other > order) {
      order = other;
      token = there;
    }
  }
  // The largest key is that of the largest logit, of the lowest id among such.
  __device__ std::uint64_t key() const {
    return std::uint64_t{order} << 32 | ~static_cast<std::uint32_t>(token);
  }
};

struct Largest {
  float logit;
  TokenId token;  // an id in any case
  SamplingStatus status;
};

// Of the largest key of a row.
__device__ __forceinline__ Largest largest_of(std::uint64_t key) {
  constexpr std::uint32_t kNothing = ~0xFF800000u, kInfinity = 0x7F800000u ^ 0x80000000u;
  const auto order = static_cast<std::uint32_t>(key >> 32);
  if (order >= kInfinity) return {0, 0, SamplingStatus::kNotANumber};
  if (order <= kNothing) return {0, 0, SamplingStatus::kNoToken};
  const std::uint32_t bits = order ^ ((order >> 31) != 0 ? 0x80000000u : ~0u);
  return {__uint_as_float(bits), static_cast<TokenId>(~static_cast<std::uint32_t>(key)),
          SamplingStatus::kGood};
}

__device__ __forceinline__ void raise_status(int* status, SamplingStatus raised) {
  if (raised != SamplingStatus::kGood) atomicMax(status, static_cast<int>(raised));
}

// A part of a row to shared memory, and f(value, index) of every value; others than the thread see
// what it wrote after a barrier only.
template <typename F>
__device__ __forceinline__ void copy_part(float* shared, RowPart part, const F& f) {
  const int quadruples = part.aligned() ? part.count / 4 : 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < quadruples; i += kRowThreads) {
    const float4 four = reinterpret_cast<const float4*>(part.values)[i];
    f(four.x, 4 * i);
    f(four.y, 4 * i + 1);
    f(four.z, 4 * i + 2);
    f(four.w, 4 * i + 3);
    reinterpret_cast<float4*>(shared)[i] = four;
  }
  for (int i = 4 * quadruples + threadIdx.x; i < part.count; i += kRowThreads) {
    f(part.values[i], i);
    shared[i] = part.values[i];
  }
}

// row = values * factor, in the order of the row's threads; they may be the same.
__device__ __forceinline__ void scale_part(float* row, RowPart part, float factor) {
  __syncthreads();
  const RowPart out{row, part.count};
  const int quadruples = out.aligned() ? part.count / 4 : 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < quadruples; i += kRowThreads) {
    const float4 four = reinterpret_cast<const float4*>(part.values)[i];
    reinterpret_cast<float4*>(row)[i] = {four.x * factor, four.y * factor, four.z * factor,
                                         four.w * factor};
  }
  for (int i = 4 * quadruples + threadIdx.x; i < part.count; i += kRowThreads) {
    row[i] = part.values[i] * factor;
  }
}

}  // namespace quantspec::cuda
