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
  float values[16];  // what upper nibbles stand for: with 0 below, or read alone

  CodedPlanes(const Matrix& matrix, WeightRead read)
      : layout(matrix.format, matrix.cols),
        upper(static_cast<const std::byte*>(matrix.data)),
        lower(static_cast<const std::byte*>(matrix.lower)),
        rows(matrix.rows),
        cols(matrix.cols),
        exponent(std::ldexp(1.0f, matrix.format.exponent)) {
    const WeightFormat& format = matrix.format;
    const int cell = 1 << format.lower_bits();
    const float centre = read == WeightRead::kUpper ? static_cast<float>(cell - 1) / 2 : 0.0f;
    for (int u = 0; u < 16; ++u) {
      values[u] = format.table == CodeTable::kIq4 ? kIq4Values[u]
                  : format.table == CodeTable::kFp4
                      ? kFp4Values[u]
                      : static_cast<float>(u * cell - format.zero) + centre;
    }
  }
};

// Calls f.operator()<bits>() with those below the upper four that a pass reads of each code.
template <typename F>
void with_lower_bits(const Matrix& matrix, WeightRead read, const F& f) {
  switch (read == WeightRead::kUpper ? 0 : matrix.format.lower_bits()) {
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

// Codes, scales and offsets of rows r and r + 8, of kLaneInputs inputs, which have one group.
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
    const int group = (of_unit * kSpanInputs + lane % 4 * kLaneInputs) / layout.group;
    load_scales(layout, upper, group, lane / 4);
    scale_[0] *= planes.exponent;
    scale_[1] *= planes.exponent;
  }

  // Of row r or r + 8, of one of the inputs. values: of share_values().
  __device__ float weight(const float (&values)[16], int upper_half, int input) const {
    const int place = code_place(0, upper_half) + input % 4 * 2, word = input / 4;
    float value = values[upper_[word] >> (4 * place) & 15];
    if constexpr (kLowerBits > 0) {
      const int shift = (8 * word * kLowerBits + place * kLowerBits) % 32;
      const std::uint32_t low = lower_[word * kLowerBits / 4] >> shift & ((1u << kLowerBits) - 1);
      value += __uint_as_float(low | kTwoTo23) - 0x1p23f;
    }
    return (upper_half == 0 ? scale_[0] : scale_[1]) * value +
           (upper_half == 0 ? offset_[0] : offset_[1]);
  }

 private:
  static constexpr std::uint32_t kTwoTo23 = 0x4b000000;  // with an integer in its low bits: + that

  template <int kWords>
  __device__ static void load(const std::byte* plane, int lane, std::uint32_t (&words)[kWords]) {
    if constexpr (kWords == 4) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(plane) + lane);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (kWords == 2) {
      const uint2 x = __ldg(reinterpret_cast<const uint2*>(plane) + lane);
      words[0] = x.x, words[1] = x.y;
    } else {
      words[0] = __ldg(reinterpret_cast<const std::uint32_t*>(plane) + lane);
    }
  }
  __device__ static float half_at(std::uint32_t pair, int index) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> (16 * index))));
  }

  __device__ void load_scales(const PlaneLayout& layout, const std::byte* unit, int group,
                              int row) {
    const std::byte* const scales = unit + layout.scale_at(group);
    if (layout.has_offset) {
      const uint2 pair = __ldg(reinterpret_cast<const uint2*>(scales) + row);
      scale_[0] = half_at(pair.x, 0), offset_[0] = half_at(pair.x, 1);
      scale_[1] = half_at(pair.y, 0), offset_[1] = half_at(pair.y, 1);
    } else {
      const std::uint32_t pair = __ldg(reinterpret_cast<const std::uint32_t*>(scales) + row);
      scale_[0] = half_at(pair, 0), scale_[1] = half_at(pair, 1);
      offset_[0] = offset_[1] = -0.0f;  // to add it changes nothing, not even -0
    }
    if (!layout.two_levels) return;
    const char2 subs =
        __ldg(reinterpret_cast<const char2*>(unit + layout.sub_scale_at(group)) + row);
    scale_[0] *= static_cast<float>(static_cast<signed char>(subs.x));
    scale_[1] *= static_cast<float>(static_cast<signed char>(subs.y));
    if (!layout.has_offset) return;
    const uchar2 sub_offsets =
        __ldg(reinterpret_cast<const uchar2*>(unit + layout.sub_offset_at(group)) + row);
    offset_[0] = -(offset_[0] * static_cast<float>(sub_offsets.x));
    offset_[1] = -(offset_[1] * static_cast<float>(sub_offsets.y));
  }

  std::uint32_t upper_[4];
  std::uint32_t lower_[kLowerBits == 0 ? 1 : kLowerBits];
  float scale_[2], offset_[2];
};

}  // namespace quantspec::cuda
