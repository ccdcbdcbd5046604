// Copies of planes to the stages of a ring (linear_stream.cuh).
#pragma once

#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// A stage has of each of so many tiles kStageUnits units of the upper plane, of kUpper bytes each,
// then (of one) that of the lower, if it is read.
template <int kTiles, int kUpper, int kLower, int kStageUnits>
struct PlaneCopies {
  static constexpr int kTileBytes = kStageUnits * (kUpper + kLower);
  static constexpr int kUnitStep = kUpper;
  static constexpr int kLowerStep = kLower;
  static_assert(kStageUnits == 1 || kLower == 0);

  __device__ static WeightPlace begin(const LinearArgs& args, const LinearSource& source, int tile,
                                      int unit) {
    return {source.data + tile * args.stride + unit * kUpper,
            kLower > 0 ? source.lower + tile * args.lower_stride + unit * kLower : nullptr};
  }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  // So many units, at most kStageUnits.
  __device__ static void load_bulk(WeightPlace (&places)[kTiles], int units, std::uint32_t stage,
                                   std::uint64_t* barrier) {
    const int upper_bytes = kStageUnits == 1 ? kUpper : units * kUpper;
    if (elect_one()) {
      barrier_expect(barrier, kTiles * (upper_bytes + kLower));
#pragma unroll
      for (const WeightPlace& place : places) {
        copy_bulk_once(stage, place.data, upper_bytes, barrier);
        if constexpr (kLower > 0) copy_bulk_once(stage + kUpper, place.lower, kLower, barrier);
        stage += kTileBytes;
      }
    }
#pragma unroll
    for (WeightPlace& place : places) {
      place.data += upper_bytes;
      if constexpr (kLower > 0) place.lower += kLower;
    }
  }
#endif
  // One unit of a tile; all lanes.
  __device__ static void load(const LinearArgs&, WeightPlace& place, std::uint32_t stage) {
    for (int i = threadIdx.x % 32 * 16; i < kUpper; i += 512) {
      copy_stream16(stage + i, place.data + i);
    }
    place.data += kUpper;
    if constexpr (kLower > 0) {
      for (int i = threadIdx.x % 32 * 16; i < kLower; i += 512) {
        copy_stream16(stage + kUpper + i, place.lower + i);
      }
      place.lower += kLower;
    }
  }
};

}  // namespace quantspec::cuda
