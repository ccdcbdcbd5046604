// Planes of codes of GGUF's types for the kernel of batch_products.cuh, and activations beside
// them.
#pragma once

#include "backend/cuda/batch_bytes.cuh"
#include "backend/cuda/linear_coded.cuh"

namespace quantspec::cuda {

// Products are the integers of CodedFormat, whose order of additions is the spans', for each group
// of a span apart. A step has 32 inputs: a group, or two, of which the product of one has zeros for
// the other. Behind the operands of a unit there are for each band the steps of all rows, then for
// each group their sums of x' step; times v / m where there are no offsets.
template <CodedKind kKind>
struct BatchCodes : ByteOperands<BatchCodes<kKind>> {
  using Codes = CodedFormat<kKind, false, 1>;
  static constexpr int kUnit = Codes::kUnit;
  static constexpr int kSteps = kUnit / 32;
  static constexpr int kUpper = Codes::kUpperBytes;
  static constexpr int kLower = Codes::kLayout.lower_bytes();
  static constexpr int kWeightBytes = kUpper + kLower;
  static constexpr int kGroups = kBandInputs / kKind.group;  // of a band
  static constexpr int kSpanGroups = Codes::kSpanGroups;
  static constexpr int kKernelRows[] = {16, 32};  // registers do not suffice for more
  static constexpr int kTiles(int) { return 1; }  // of a warp
  static constexpr int kRecordBytes(int rows) {
    return kUnit / kBandInputs * (1 + kGroups) * rows * static_cast<int>(sizeof(float));
  }
  static_assert(!kKind.table, "A would be signed");

  __device__ static OperandWord word_of(int lane) {
    if constexpr (kKind.group == 32) {
      return {lane / 8, lane % 2, lane % 8 / 2};
    } else {
      return {lane / 8, lane % 8 / 4, lane % 4};
    }
  }
  // sum: of a lane's integers.
  __device__ static void put_record(float* records, int rows, int row, float step, int sum,
                                    float code_value) {
    constexpr int kWidth = kKind.group / 4;  // lanes of a group
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 1; i < kWidth; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (lane == 0) records[row] = step;
    if (lane % kWidth != 0) return;
    const float of_group = static_cast<float>(sum) * step;
    records[(1 + lane / kWidth) * rows + row] = kKind.has_offset ? of_group : code_value * of_group;
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  template <int kRows>
  struct Sums {
    using Dots = std::int32_t[kRows];  // of hi and lo, as wgmma_bytes() has them

    float of[kSpanGroups][kRows / 2];  // [j][4 i] to [j][4 i + 3]: as for_rows() has them

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (auto& of_group : of) {
#pragma unroll
        for (float& sum : of_group) sum = 0.0f;
      }
    }
    // So many spans at a time have four groups. Of those the products of two are under way.
    __device__ __forceinline__ void add(const BatchArgs& args, std::uint32_t stage,
                                        std::uint32_t operands) {
      constexpr int kSpans = 4 / kSpanGroups;
      typename Codes::RowPair of_block{};
      if constexpr (kKind.two_levels) {
        of_block = Codes::load_scales(args, stage + Codes::kLayout.scale_at(0));
      }
#pragma unroll 1
      for (int span = 0; span < kUnit / kSpanInputs; span += kSpans) {
        std::uint32_t a[4][4];
        typename Codes::RowPair scales[4];
#pragma unroll
        for (int i = 0; i < kSpans; ++i) {
          std::uint32_t codes[8];
          Codes::load_codes(args, stage, span + i, codes);
          set_operands(codes, a + i * kSpanGroups);
        }
#pragma unroll
        for (int i = 0; i < kSpans; ++i) {
          typename Codes::RowPair of_span[kSpanGroups];
          Codes::load_group_scales(args, stage, span + i, of_block, of_span);
#pragma unroll
          for (int j = 0; j < kSpanGroups; ++j) scales[i * kSpanGroups + j] = of_span[j];
        }
        const Records records(operands, span);
        const std::uint32_t first = operands + 2 * span * (kRows / 8 * kGroupBytes);
        Dots dots[2];
        const auto multiply = [&](int group) {
          products_begin();
          const int step = group * kSpans / 2;
          wgmma_bytes<false>(dots[group % 2], a[group], operand_of_step<kRows>(first, step));
          products_commit();
        };
        multiply(0);
        multiply(1);
#pragma unroll
        for (int group = 0; group < 4; ++group) {
          group < 3 ? products_wait<1>(dots[group % 2]) : products_wait<0>(dots[group % 2]);
          add_group(dots[group % 2], scales[group], records, group, args.code_value);
          if (group < 2) multiply(group + 2);
        }
      }
      loads_before_copies();
    }
    __device__ __forceinline__ void get(float (&v)[kRows / 2]) const {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        v[i] = of[0][i] + of[1][i];
        if constexpr (kSpanGroups == 4) v[i] += of[2][i] + of[3][i];
      }
    }

   private:
    // From a span on, of a band: the lane's steps, and where groups' sums are.
    struct Records {
      float2 steps[kRows / 8];  // of rows 8 i + 2 t and the next
      std::uint32_t sums;

      __device__ __forceinline__ Records(std::uint32_t operands, int span) {
        const std::uint32_t of_band = operands + operand_bytes(kRows, kSteps) +
                                      span / 2 * (1 + kGroups) * kRows * sizeof(float) +
                                      threadIdx.x % 4 * sizeof(float2);
#pragma unroll
        for (int i = 0; i < kRows / 8; ++i) steps[i] = load_floats(of_band + 32 * i);
        sums = of_band + (1 + span % 2 * kSpanGroups) * kRows * sizeof(float);
      }
    };
    __device__ static float2 load_floats(std::uint32_t place) {
      const uint2 x = load_shared8(place);
      return {__uint_as_float(x.x), __uint_as_float(x.y)};
    }

    // The A of each group's product. Where a step has two groups, the other's places have zeros.
    __device__ __forceinline__ static void set_operands(const std::uint32_t (&codes)[8],
                                                        std::uint32_t (*a)[4]) {
#pragma unroll
      for (int i = 0; i < 4 * kSpanGroups; ++i) {
        const int group = i / 4;
        std::uint32_t& x = a[group][i % 4];
        if constexpr (kSpanGroups == 2) {
          x = codes[i];
        } else {
          x = i % 4 / 2 == group % 2 ? codes[group / 2 * 4 + i % 4] : 0;
        }
        asm volatile("" : "+r"(x));  // before products begin
      }
    }
    __device__ __forceinline__ void add_group(const Dots& dots,
                                              const typename Codes::RowPair& scales,
                                              const Records& records, int group, float code_value) {
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        const float2 both = load_floats(records.sums + (group * kRows + 8 * i) * sizeof(float));
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const std::int32_t* const hi = dots + 8 * i + column;
          const float sum = column == 0 ? both.x : both.y;
          const float step = column == 0 ? records.steps[i].x : records.steps[i].y;
          const float value_sum = kKind.has_offset ? code_value * sum : sum;
          Codes::add(hi[0], hi[4], scales.low, scales.low_offset, step, value_sum, sum,
                     of[group % kSpanGroups][4 * i + column]);
          Codes::add(hi[2], hi[6], scales.high, scales.high_offset, step, value_sum, sum,
                     of[group % kSpanGroups][4 * i + 2 + column]);
        }
      }
    }
  };
  template <int kRows>
  __device__ __forceinline__ static void add_unit(const BatchArgs& args, std::uint32_t stage,
                                                  std::uint32_t, std::uint32_t operands,
                                                  Sums<kRows> (&sums)[1]) {
    sums[0].add(args, stage, operands);
  }
#endif
};

}  // namespace quantspec::cuda
