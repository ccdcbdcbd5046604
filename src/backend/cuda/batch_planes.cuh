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
  static constexpr int kPartRows = 32;  // of a product at most
  static constexpr int kSteps = kUnit / 32;
  static constexpr int kUpper = upper_unit_bytes(kGroup), kLower = kBoth ? kLowerUnitBytes : 0;
  static constexpr int kWeightBytes = kUpper + kLower;
  static constexpr int kKernelRows[] = {8, 16, 32, 64};
  static constexpr int kTiles(int rows) { return rows > kPartRows ? 1 : 2; }  // of a warp
  static constexpr int kRecordBytes(int rows) { return sizeof(float2) * rows; }

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
  // A lane's weights of a unit of a tile.
  struct UnitWeights {
    std::uint32_t a[4 * kSteps];

    __device__ __forceinline__ explicit UnitWeights(std::uint32_t stage) {
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
    }
  };
  // Of rows g and g + 8 of a tile.
  struct UnitScales {
    float2 low, high;  // scale and offset

    __device__ __forceinline__ explicit UnitScales(std::uint32_t stage) {
      const uint2 stored = load_shared8(stage + 4 * kPlaneUnitWords + threadIdx.x % 32 / 4 * 8);
      low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
      high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
    }
  };
  // [4 i] to [4 i + 3]: as for_rows() has them.
  template <int kRows>
  struct Sums {
    static constexpr int kColumns = std::min(kRows, kPartRows);
    static constexpr int kParts = kRows / kColumns;
    using Dots = std::int32_t[kColumns];

    float of[kRows / 2];

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (float& sum : of) sum = 0.0f;
    }
    __device__ __forceinline__ void get(float (&v)[kRows / 2]) const {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) v[i] = of[i];
    }
    __device__ __forceinline__ static void multiply(const UnitWeights& lane, std::uint32_t operands,
                                                    int part, Dots& dots) {
      operands += part * (kPartRows / 8 * kGroupBytes);
      wgmma_bytes<false>(dots, lane.a, operand_of_step<kRows>(operands, 0));
#pragma unroll
      for (int i = 1; i < kSteps; ++i) {
        wgmma_bytes<true>(dots, lane.a + 4 * i, operand_of_step<kRows>(operands, i));
      }
      products_commit();
    }
    // NOTE: m scale, step instead of scale, m step: m and steps are powers of two, so the product
    // is the same.
    __device__ __forceinline__ void add(const UnitScales& lane, std::uint32_t operands, int part,
                                        const Dots& dots) {
      const std::uint32_t records = operands + operand_bytes(kRows, kSteps) +
                                    (kPartRows * part + threadIdx.x % 4 * 2) * sizeof(float2);
      const float scale_low = Planes::kStep * lane.low.x;
      const float of_low = fmaf(Planes::kValue, lane.low.x, lane.low.y);
      const float of_high = fmaf(Planes::kValue, lane.high.x, lane.high.y);
#pragma unroll
      for (int group = 0; group < kColumns / 8; ++group) {
        const uint4 both = load_shared16(records + 8 * group * sizeof(float2));
        const std::uint32_t steps[] = {both.x, both.z}, x_sums[] = {both.y, both.w};
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const float step = __uint_as_float(steps[column]);
          const float x_sum = __uint_as_float(x_sums[column]);
          const std::int32_t* const hi = dots + 8 * group + column;
          float& low = of[kPartRows / 2 * part + 4 * group + column];
          float& high = of[kPartRows / 2 * part + 4 * group + 2 + column];
          low = fmaf(__fmul_rn(scale_low, step), static_cast<float>(hi[0] * 256 + hi[4]),
                     fmaf(of_low, x_sum, low));
          high = fmaf(__fmul_rn(lane.high.x, step), static_cast<float>(hi[2] * 256 + hi[6]),
                      fmaf(of_high, x_sum, high));
        }
      }
    }
  };
  // Adds a unit of a warp's tiles, weights of which are `stride` apart. There are two products, of
  // two tiles or two parts of the rows: one runs while sums take what the other left.
  template <int kRows>
  __device__ __forceinline__ static void add_unit(const BatchArgs&, std::uint32_t stage,
                                                  std::uint32_t stride, std::uint32_t operands,
                                                  Sums<kRows> (&sums)[kTiles(kRows)]) {
    constexpr int kParts = Sums<kRows>::kParts;
    static_assert(kTiles(kRows) * kParts == 2);
    typename Sums<kRows>::Dots dots[2];
#pragma unroll
    for (int tile = 0; tile < kTiles(kRows); ++tile) {
      const UnitWeights lane(stage + tile * stride);
      products_begin();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Sums<kRows>::multiply(lane, operands, part, dots[tile + part]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      i == 0 ? products_wait<1>(dots[0]) : products_wait<0>(dots[1]);
      const int tile = i / kParts;
      sums[tile].add(UnitScales(stage + tile * stride), operands, i % kParts, dots[i]);
    }
    loads_before_copies();
  }
#endif
};

}  // namespace quantspec::cuda
