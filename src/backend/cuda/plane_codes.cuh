// What a lane reads of the planes of a matrix of any format (linear_layout.h), as weights: what
// decode_row() of quant/weight_format.h gives, to the bit.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "backend/cuda/linear_layout.h"
#include "backend/params/linear.h"

namespace quantspec::cuda {

// A matrix of planes, as kernels take it.
struct CodedPlanes {
  PlaneLayout layout;
  const std::byte* upper;
  const std::byte* lower;
  int rows;
  int cols;
  float exponent;    // WeightFormat's, as a factor
  float values[16];  // what upper nibbles stand for, with 0 below

  explicit CodedPlanes(const Matrix& matrix)
      : layout(matrix.format, matrix.cols),
        upper(static_cast<const std::byte*>(matrix.data)),
        lower(static_cast<const std::byte*>(matrix.lower)),
        rows(matrix.rows),
        cols(matrix.cols),
        exponent(std::ldexp(1.0f, matrix.format.exponent)) {
    const WeightFormat& format = matrix.format;
    const int cell = 1 << format.lower_bits();
    for (int u = 0; u < 16; ++u) {
      values[u] = format.table == CodeTable::kIq4   ? kIq4Values[u]
                  : format.table == CodeTable::kFp4 ? kFp4Values[u]
                                                    : static_cast<float>(u * cell - format.zero);
    }
  }
};

// Calls f.operator()<bits>() with those below the upper four.
template <typename F>
void with_lower_bits(const Matrix& matrix, const F& f) {
  switch (matrix.format.lower_bits()) {
    case 0:
      return f.template operator()<0>();
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    default:
      return f.template operator()<4>();
  }
}

// CodedPlanes::values in shared memory; all threads of the block.
__device__ inline void share_values(const CodedPlanes& planes, float (&values)[16]) {
  if (threadIdx.x < 16) values[threadIdx.x] = planes.values[threadIdx.x];
  __syncthreads();
}

// Codes, scales and offsets of rows r and r + 8, of kLaneInputs inputs. Those of a word of nibbles
// have one group.
template <int kLowerBits>
class LaneCodes {
 public:
  // Of the lane of a warp that reads a span of a tile.
  __device__ LaneCodes(const CodedPlanes& planes, int tile, int span, int lane) {
    const PlaneLayout& layout = planes.layout;
    const int spans = layout.unit / kSpanInputs, unit = span / spans;
    const int of_unit = span - unit * spans;
    const std::size_t index = static_cast<std::size_t>(tile) * layout.units + unit;
    const std::byte* const upper = planes.upper + index * layout.upper_bytes();
    load<4>(upper, 32 * of_unit + lane, upper_);
    if constexpr (kLowerBits > 0) {
      load<kLowerBits>(planes.lower + index * layout.lower_bytes(), 32 * of_unit + lane, lower_);
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int input = of_unit * kSpanInputs + lane_input(layout.group, lane % 4, 4 * word);
      load_scales(layout, upper, input / layout.group, lane / 4, scale_[word], offset_[word]);
      scale_[word][0] *= planes.exponent;
      scale_[word][1] *= planes.exponent;
    }
  }

  // Of row r (half 0) or r + 8, of the lane's input i. values: of share_values().
  __device__ float weight(const float (&values)[16], int half, int i) const {
    float value = values[upper_[code_word(4, i, half)] >> code_shift(4, i, half) & 15];
    if constexpr (kLowerBits > 0) {
      const std::uint32_t lower = lower_[code_word(kLowerBits, i, half)];
      const int shift = code_shift(kLowerBits, i, half);
      const std::uint32_t low = lower >> shift & ((1u << kLowerBits) - 1);
      value += __uint_as_float(low | kTwoTo23) - 0x1p23f;
    }
    return scale_[i / 4][half] * value + offset_[i / 4][half];
  }

 private:
  static constexpr std::uint32_t kTwoTo23 = 0x4b000000;  // with an integer in its low bits: + that

  template <int kCount>
  __device__ static void load(const std::byte* plane, int lane, std::uint32_t (&words)[kCount]) {
    if constexpr (kCount == 4) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(plane) + lane);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (kCount == 2) {
      const uint2 x = __ldg(reinterpret_cast<const uint2*>(plane) + lane);
      words[0] = x.x, words[1] = x.y;
    } else {
      words[0] = __ldg(reinterpret_cast<const std::uint32_t*>(plane) + lane);
    }
  }
  __device__ static float half_at(std::uint32_t pair, int index) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> (16 * index))));
  }

  // Of rows `row` and row + 8.
  __device__ static void load_scales(const PlaneLayout& layout, const std::byte* unit, int group,
                                     int row, float (&scale)[2], float (&offset)[2]) {
    const std::byte* const scales = unit + layout.scale_at(group);
    if (layout.has_offset) {
      const uint2 pair = __ldg(reinterpret_cast<const uint2*>(scales) + row);
      scale[0] = half_at(pair.x, 0), offset[0] = half_at(pair.x, 1);
      scale[1] = half_at(pair.y, 0), offset[1] = half_at(pair.y, 1);
    } else {
      const std::uint32_t pair = __ldg(reinterpret_cast<const std::uint32_t*>(scales) + row);
      scale[0] = half_at(pair, 0), scale[1] = half_at(pair, 1);
      offset[0] = offset[1] = -0.0f;  // to add it changes nothing, not even -0
    }
    if (!layout.two_levels) return;
    const int place = layout.sub_place(row, group);
    const char2 subs = __ldg(reinterpret_cast<const char2*>(unit + layout.sub_scales_at() + place));
    scale[0] *= static_cast<float>(static_cast<signed char>(subs.x));
    scale[1] *= static_cast<float>(static_cast<signed char>(subs.y));
    if (!layout.has_offset) return;
    const uchar2 sub_offsets =
        __ldg(reinterpret_cast<const uchar2*>(unit + layout.sub_offsets_at() + place));
    offset[0] = -(offset[0] * static_cast<float>(sub_offsets.x));
    offset[1] = -(offset[1] * static_cast<float>(sub_offsets.y));
  }

  static constexpr int kWords = 4;  // of nibbles
  std::uint32_t upper_[kWords];
  std::uint32_t lower_[kLowerBits == 0 ? 1 : kLowerBits];
  float scale_[kWords][2], offset_[kWords][2];
};

}  // namespace quantspec::cuda
