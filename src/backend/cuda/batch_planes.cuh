// Planes in groups of 128 for the kernel of batch_products.cuh, and activations beside them.
#pragma once

#include "backend/cuda/batch_bytes.cuh"
#include "backend/cuda/linear_planes.cuh"

namespace quantspec::cuda {

// Products are the integers of PlaneFormat, whose order of additions is the units'. Of a unit, 128
// inputs and one group, a step has inputs 16 t + 8 i .. + 7 of a span of 64 (lane 4 g + t; i = 0
// for steps 0 and 2), in places 4 t .. 4 t + 3 of both halves. Behind the operands of a unit there
// is a record for each row: step, (sum of x') step. Of upper nibbles alone, rows r + 8 of weights
// are 16 u: a mask for each word, where PlaneFormat subtracts for each sum.
template <bool kBoth>
struct BatchPlanes : ByteOperands<BatchPlanes<kBoth>> {
  static constexpr int kGroup = 128;
  using Planes = PlaneFormat<kBoth, kGroup, 1>;
  static constexpr int kUnit = kPlaneUnit;
  static constexpr int kSteps = kUnit / 32;
  static constexpr int kUpper = upper_unit_bytes(kGroup), kLower = kBoth ? kLowerUnitBytes : 0;
  static constexpr int kWeightBytes = kUpper + kLower;
  static constexpr int kFewestRows = 32, kMostRows = kMostBatchRows;  // of a launch's kernels
  static constexpr int kStages(int rows) {
    return kBatchRingBytes /
           (kBatchTiles * kWeightBytes + operand_bytes(rows, kSteps) + kRecordBytes(rows));
  }
  static constexpr int kDepth(int rows) { return kStages(rows); }
  static constexpr int kRecordBytes(int rows) { return sizeof(float2) * rows; }
  static constexpr bool kHalvesTiles = false;
  static constexpr bool kOwnRings = false;

  __device__ static OperandWord word_of(int lane) {
    return {lane / 16 * 2 + lane % 4 / 2, lane % 2, lane % 16 / 4};
  }
  // sum: of a lane's integers.
  __device__ static void put_record(float* records, int, int row, float step, int sum, float) {
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x % 32 != 0) return;
    reinterpret_cast<float2*>(records)[row] = {step, static_cast<float>(sum) * step};
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  struct UnitWeights {
    std::uint32_t a[4 * kSteps];
    float2 low, high;  // scale and offset of rows g and g + 8

    __device__ __forceinline__ UnitWeights(const BatchArgs&, std::uint32_t stage) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int span = 0; span < 2; ++span) {
        const std::uint32_t from = stage + span * 512 + lane * 16;
        const uint4 upper = load_shared16(from);
        const uint4 lower = kBoth ? load_shared16<kUpper>(from) : uint4{};
        std::uint32_t* const to = a + 8 * span;
        Planes::bytes(upper.x, lower.x, to[0], to[1]);
        Planes::bytes(upper.y, lower.y, to[2], to[3]);
        Planes::bytes(upper.z, lower.z, to[4], to[5]);
        Planes::bytes(upper.w, lower.w, to[6], to[7]);
        if constexpr (!kBoth) {
#pragma unroll
          for (int i = 1; i < 8; i += 2) to[i] &= 0xf0f0f0f0;
        }
      }
#pragma unroll
      for (std::uint32_t& x : a) asm volatile("" : "+r"(x));  // operands before products begin
      const uint2 stored = load_shared8(stage + 4 * kPlaneUnitWords + lane / 4 * 8);
      low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
      high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
    }
  };
  // [4 i] to [4 i + 3]: as for_rows() has them.
  template <int kRows>
  struct Sums {
    float of[kRows / 2];

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (float& sum : of) sum = 0.0f;
    }
    // NOTE: 32 rows at a time: registers do not suffice for the integers of more.
    __device__ __forceinline__ void add(const UnitWeights& lane, std::uint32_t operands) {
#pragma unroll
      for (int part = 0; part < kRows / 32; ++part) {
        std::int32_t dots[32];
        products_begin();
        multiply(lane, operands, part, dots);
        products_wait<0>(dots);
        add_part(lane, operands, part, dots);
      }
      __syncwarp();  // all lanes have read records
    }
    __device__ __forceinline__ void multiply(const UnitWeights& lane, std::uint32_t operands,
                                             int part, std::int32_t (&dots)[32]) {
      operands += part * 4 * kGroupBytes;
      wgmma_bytes<false>(dots, lane.a, operand_of_step<kRows>(operands, 0));
#pragma unroll
      for (int i = 1; i < kSteps; ++i) {
        wgmma_bytes<true>(dots, lane.a + 4 * i, operand_of_step<kRows>(operands, i));
      }
      products_commit();
    }
    // NOTE: m scale, step instead of scale, m step: m and steps are powers of two, so the product
    // is the same.
    __device__ __forceinline__ void add_part(const UnitWeights& lane, std::uint32_t operands,
                                             int part, const std::int32_t (&dots)[32]) {
      const std::uint32_t records = operands + operand_bytes(kRows, kSteps) +
                                    (32 * part + threadIdx.x % 4 * 2) * sizeof(float2);
      const float scale_low = Planes::kStep * lane.low.x;
      const float of_low = fmaf(Planes::kValue, lane.low.x, lane.low.y);
      const float of_high = fmaf(Planes::kValue, lane.high.x, lane.high.y);
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        const uint4 both = load_shared16(records + 8 * group * sizeof(float2));
        const std::uint32_t steps[] = {both.x, both.z}, x_sums[] = {both.y, both.w};
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const float step = __uint_as_float(steps[column]);
          const float x_sum = __uint_as_float(x_sums[column]);
          const std::int32_t* const hi = dots + 8 * group + column;
          float& low = of[16 * part + 4 * group + column];
          float& high = of[16 * part + 4 * group + 2 + column];
          low = fmaf(__fmul_rn(scale_low, step), static_cast<float>(hi[0] * 256 + hi[4]),
                     fmaf(of_low, x_sum, low));
          high = fmaf(__fmul_rn(lane.high.x, step), static_cast<float>(hi[2] * 256 + hi[6]),
                      fmaf(of_high, x_sum, high));
        }
      }
    }
    __device__ __forceinline__ void get(float (&v)[kRows / 2]) const {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) v[i] = of[i];
    }
  };
#endif
};

}  // namespace quantspec::cuda
