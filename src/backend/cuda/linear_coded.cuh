// The format (linear_inputs.cuh) of planes of codes of GGUF's types (linear_layout.h), and of
// weights that are kept for drafts in fine groups.
#pragma once

#include <cfloat>

#include "backend/cuda/coded_linear.h"
#include "backend/cuda/plane_copies.cuh"

namespace quantspec::cuda {

// As with the planes of linear_planes.cuh, products are of integers, and exact: codes are bytes of
// A, and an activation is an integer x' of 16 bits, with a power of two for each row and band, in
// two columns of B. But scales are of fewer inputs. With m, v for what a code, as it is read,
// stands for (m c + v):
//
//     sum over a group of weight x = m scale (step (sum of c x') + v / m s) + offset s
//
// where s = step (sum of x').
//
// A span has J groups, 2 or 4; of each a lane has whole words. A product of many rows is of one
// group. Of one row, or two, kSpread, all of a span are multiplied together, and groups have
// columns of their own, in which the inputs of others are zeros: then each lane has the sums of one
// group, whose scale it alone needs. Either way an output is a sum over spans for each of the J,
// which are added at the end in the same order.
template <CodedKind kKind, bool kSpread, int kTilesTogether>
struct CodedFormat : PlaneCopies<kTilesTogether, kKind.unit_layout().upper_bytes(),
                                 kKind.unit_layout().lower_bytes(), 1> {
  static constexpr LinearSizes kSizes = coded_sizes(kKind, kTilesTogether);
  static constexpr int kUnit = kSizes.unit;
  static constexpr int kTogether = kSizes.together;
  static constexpr int kStageUnits = kSizes.stage_units;
  static constexpr int kColumns = kSizes.columns;
  static constexpr int kInputBytes = kSizes.input;
  static constexpr bool kPlanes = kSizes.planes;
  static constexpr bool kOfEachOp = is_common(kKind);
  static constexpr PlaneLayout kLayout = kKind.unit_layout();
  static constexpr int kUpperBytes = kLayout.upper_bytes();
  using CodedFormat::PlaneCopies::kTileBytes;
  static constexpr int kStageBytes = kSizes.stage;
  static constexpr int kStreamedBytes = kSizes.streamed;
  static constexpr int kLower = kKind.lower;
  static constexpr int kSpanGroups = kKind.span_groups();  // J
  static_assert(kSpanGroups == 2 || kSpanGroups == 4);
  static constexpr int kRecord = kKind.record_floats();
  static constexpr int kOwnGroups = kSpread ? 1 : kSpanGroups;  // of a lane
  static constexpr int kRowsOfTile = kSpread ? 4 / kSpanGroups : 4;
  static constexpr int max_rows(int tiles) { return tiles * kRowsOfTile; }
  template <int kTiles>
  using Sums = float[kTogether][kTiles][kOwnGroups][2];

  template <int kBatch>
  __device__ static void put(const Inputs& to, int row, int band, int count,
                             const float4 (&x)[kBatch]) {
    constexpr int kGroup = kSpanInputs / kSpanGroups, kWidth = kGroup / 4;  // lanes of a group
    const int lane = threadIdx.x % 32, own = lane % kWidth;
    // Where lanes read the four inputs: words of lane t at 16 t of the span (lane_input()).
    const int of_group = lane % 16 / kWidth, t = own * 4 / kWidth, word = own % (kWidth / 4);
    const int place = lane / 16 * kSpanInputs + t * 16 + (of_group * (kWidth / 4) + word) * 4;
    std::byte* at = to.at<1>(band * kBandInputs + place, 2 * row);
    const int record = row * to.group_stride + band * kSizes.band_groups + lane / 16;
    auto* records = reinterpret_cast<float*>(to.groups) + record * kRecord;
    float max[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) max[i] = greatest<32>(x[i]);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const PowerOfTwo power = activation_power(max[i]);
      const ActivationBytes bytes = activation_bytes(x[i], power.scale);
      int sum = bytes.sum;
#pragma unroll
      for (int step = 1; step < kWidth; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (i < count) {
        *reinterpret_cast<std::uint32_t*>(at) = bytes.hi;
        *reinterpret_cast<std::uint32_t*>(at + to.stride) = bytes.lo;
        const float step = max[i] <= FLT_MAX ? power.inverse : NAN;
        if (own == 0) records[of_group] = static_cast<float>(sum) * step;
        if (lane % 16 == 0) records[kSpanGroups] = step;
      }
      at += kBandInputs;
      records += kSizes.band_groups * kRecord;
    }
  }

  // Where a lane reads the values of its column of B, and the records of its activation row.
  template <int kTiles>
  struct LanePlaces {
    std::uint32_t values[kTiles];
    std::uint32_t records[kTiles];
    std::uint32_t masks[kSpanGroups];  // kSpread: 0 for words of groups that are not the column's
    const LinearArgs* args;
  };
  template <int kTiles>
  __device__ static LanePlaces<kTiles> lane_inputs(const LinearArgs& args, const Inputs& inputs,
                                                   int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr int kOfRow = 4 / kRowsOfTile;  // lanes t that an activation row has
    LanePlaces<kTiles> places{};
    places.args = &args;
#pragma unroll
    for (int j = 0; j < kSpanGroups; ++j) places.masks[j] = g / 2 % kOfRow == j ? ~0u : 0;
    const auto* const records = reinterpret_cast<const float*>(inputs.groups);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column_row = min((4 * n + g / 2) / kOfRow, args.num_rows - 1);
      const int row = min((4 * n + t) / kOfRow, args.num_rows - 1);
      places.values[n] = shared_address(inputs.at<1>(first + 16 * t, 2 * column_row + g % 2));
      places.records[n] =
          shared_address(records + (row * inputs.group_stride + first / kSpanInputs) * kRecord);
    }
    return places;
  }

  template <int kTiles>
  __device__ static void multiply(const LanePlaces<kTiles>& inputs, int unit, std::uint32_t stage,
                                  Sums<kTiles>& sums) {
    constexpr int kSpans = kUnit / kSpanInputs;
    const float value = inputs.args->code_value;
    RowPair of_block[kTogether];
    if constexpr (kKind.two_levels) {
#pragma unroll
      for (int tile = 0; tile < kTogether; ++tile) {
        of_block[tile] = load_scales(*inputs.args, stage + tile * kTileBytes + kLayout.scale_at(0));
      }
    }
    const std::uint32_t values = unit * kUnit, records = unit * kSpans * kRecord * 4;
#pragma unroll(kSpread ? 4 : 2)
    for (int span = 0; span < kSpans; ++span) {
      uint4 b[kTiles];
      SpanRecord of_row[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        b[n] = load_shared16(inputs.values[n] + values + span * kSpanInputs);
        of_row[n] = load_record(inputs.records[n] + records + span * kRecord * 4);
      }
#pragma unroll
      for (int tile = 0; tile < kTogether; ++tile) {
        const std::uint32_t at = stage + tile * kTileBytes;
        std::uint32_t a[8];
        load_codes(*inputs.args, at, span, a);
        RowPair scales[kOwnGroups];
        load_group_scales(*inputs.args, at, span, of_block[tile], scales);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int j = 0; j < kOwnGroups; ++j) {
            add_group(dots_of(inputs, a, b[n], j), scales[j], of_row[n].step,
                      value * of_row[n].sums[j], of_row[n].sums[j], sums[tile][n][j]);
          }
        }
      }
    }
  }

  template <int kTiles, typename F>
  __device__ static void for_each_sum(const LinearArgs& args,
                                      const float (&sums)[kTiles][kOwnGroups][2], const F& f) {
    constexpr int kOfRow = 4 / kRowsOfTile;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int row = (4 * n + t) / kOfRow;
      float whole[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float parts[kOwnGroups];
#pragma unroll
        for (int j = 0; j < kOwnGroups; ++j) parts[j] = sums[n][j][half];
#pragma unroll
        for (int step = 1; step < kOwnGroups; step *= 2) {
#pragma unroll
          for (int j = 0; j < kOwnGroups; j += 2 * step) parts[j] += parts[j + step];
        }
        whole[half] = warp_sum(parts[0], kOfRow);
      }
      if (t % kOfRow != 0 || row >= args.num_rows) continue;
      f(row, g, whole[0]);
      f(row, g + 8, whole[1]);
    }
  }

  // --- of a span; batch_codes.cuh takes some of it, too

  struct Dots {
    std::int32_t of[4];  // 256 [0] + [1], of row g, and [2], [3] of row g + 8
  };

  // Of group j of a span.
  template <int kTiles>
  __device__ static Dots dots_of(const LanePlaces<kTiles>& inputs, const std::uint32_t (&a)[8],
                                 const uint4& b, int j) {
    Dots dots{};
    const std::uint32_t words[4] = {b.x, b.y, b.z, b.w};
    if constexpr (kSpread) {
      std::uint32_t own[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = words[i] & inputs.masks[i * kSpanGroups / 4];
      multiply_codes(dots.of, &a[0], own[0], own[1]);
      multiply_codes(dots.of, &a[4], own[2], own[3]);
    } else if constexpr (kSpanGroups == 2) {
      multiply_codes(dots.of, &a[4 * j], words[2 * j], words[2 * j + 1]);
    } else {
      multiply_codes(dots.of, &a[2 * j], words[j]);
    }
    return dots;
  }
  __device__ static void multiply_codes(std::int32_t (&dots)[4], const std::uint32_t* a,
                                        std::uint32_t b0, std::uint32_t b1) {
    if constexpr (kKind.table) {
      mma_s8(dots, a[0], a[1], a[2], a[3], b0, b1);
    } else {
      mma_u8(dots, a[0], a[1], a[2], a[3], b0, b1);
    }
  }
  __device__ static void multiply_codes(std::int32_t (&dots)[4], const std::uint32_t* a,
                                        std::uint32_t b) {
    if constexpr (kKind.table) {
      mma_s8(dots, a[0], a[1], b);
    } else {
      mma_u8(dots, a[0], a[1], b);
    }
  }

  // Of rows g and g + 8.
  struct RowPair {
    float low, low_offset, high, high_offset;
  };
  // value_sum: v / m s, of the activations whose sum s is.
  __device__ static void add_group(const Dots& dots, const RowPair& scales, float step,
                                   float value_sum, float sum, float (&to)[2]) {
    add(dots.of[0], dots.of[1], scales.low, scales.low_offset, step, value_sum, sum, to[0]);
    add(dots.of[2], dots.of[3], scales.high, scales.high_offset, step, value_sum, sum, to[1]);
  }
  // 256 hi + lo of one row, with its scale and offset.
  __device__ __forceinline__ static void add(int hi, int lo, float scale, float offset, float step,
                                             float value_sum, float sum, float& to) {
    const float whole = static_cast<float>(hi * 256 + lo);
    if constexpr (kKind.has_offset) to = fmaf(offset, sum, to);
    to = fmaf(scale, fmaf(whole, step, value_sum), to);
  }

  // Of an activation row.
  struct SpanRecord {
    float sums[kOwnGroups];
    float step;
  };
  __device__ static SpanRecord load_record(std::uint32_t place) {
    SpanRecord record;
    if constexpr (kSpread) {
      record.sums[0] = __uint_as_float(load_shared4(place + threadIdx.x % kSpanGroups * 4));
      record.step = __uint_as_float(load_shared4(place + kSpanGroups * 4));
    } else {
      const uint4 first = load_shared16(place);
      record.sums[0] = __uint_as_float(first.x);
      record.sums[1] = __uint_as_float(first.y);
      if constexpr (kSpanGroups == 2) {
        record.step = __uint_as_float(first.z);
      } else {
        record.sums[2] = __uint_as_float(first.z);
        record.sums[3] = __uint_as_float(first.w);
        record.step = __uint_as_float(load_shared4(place + 16));
      }
    }
    return record;
  }

  // Those of a group or a block, times m. `place`: of the tile's.
  template <typename Args>
  __device__ static RowPair load_scales(const Args& args, std::uint32_t place) {
    const int g = threadIdx.x % 32 / 4;
    const float m = args.code_step;
    const auto half = [](std::uint32_t pair, int i) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> (16 * i))));
    };
    if constexpr (kKind.has_offset) {
      const uint2 pairs = load_shared8(place + g * 8);
      return {half(pairs.x, 0) * m, half(pairs.x, 1), half(pairs.y, 0) * m, half(pairs.y, 1)};
    } else {
      const std::uint32_t pair = load_shared4(place + g * 4);
      return {half(pair, 0) * m, 0.0f, half(pair, 1) * m, 0.0f};
    }
  }
  // Of the lane's groups of a span. of_block: two levels.
  template <typename Args>
  __device__ static void load_group_scales(const Args& args, std::uint32_t tile, int span,
                                           const RowPair& of_block, RowPair (&scales)[kOwnGroups]) {
    const int first = kSpread ? threadIdx.x % kSpanGroups : 0;
    if constexpr (kKind.two_levels) {
      const int place =
          threadIdx.x % 32 / 4 * 2 * kLayout.groups() + (span * kSpanGroups + first) * 2;
      std::uint32_t subs[divide_up(kOwnGroups, 2)], sub_offsets[divide_up(kOwnGroups, 2)] = {};
      load_pairs(tile + kLayout.sub_scales_at() + place, subs);
      if constexpr (kKind.has_offset) {
        load_pairs(tile + kLayout.sub_offsets_at() + place, sub_offsets);
      }
#pragma unroll
      for (int j = 0; j < kOwnGroups; ++j) {
        const std::uint32_t own = subs[j / 2] ^ 0x80808080;
        const int low = j % 2 * 2, high = low + 1;
        scales[j].low = of_block.low * byte_less<128>(own, low);
        scales[j].high = of_block.high * byte_less<128>(own, high);
        if constexpr (kKind.has_offset) {
          scales[j].low_offset = -of_block.low_offset * byte_less<0>(sub_offsets[j / 2], low);
          scales[j].high_offset = -of_block.high_offset * byte_less<0>(sub_offsets[j / 2], high);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kOwnGroups; ++j) {
        const int group = span * kSpanInputs / kKind.group + first + j;
        scales[j] = load_scales(args, tile + kLayout.scale_at(0) + group * kLayout.scale_bytes());
      }
    }
  }
  // Bytes of rows g and g + 8, of kOwnGroups groups.
  template <int kWords>
  __device__ static void load_pairs(std::uint32_t place, std::uint32_t (&words)[kWords]) {
    if constexpr (kOwnGroups == 1) {
      words[0] = load_shared2(place);
    } else {
      load_words(place, words);
    }
  }
  // An unsigned byte of a word, less so much.
  template <int kLess>
  __device__ static float byte_less(std::uint32_t word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 + i)) - (0x1p23f + kLess);
  }

  // A of a span's products: words 2 i and 2 i + 1 are rows g and g + 8 of 4 inputs.
  template <typename Args>
  __device__ static void load_codes(const Args& args, std::uint32_t tile, int span,
                                    std::uint32_t (&a)[8]) {
    const int lane = threadIdx.x % 32;
    const uint4 loaded = load_shared16(tile + span * 512 + lane * 16);
    const std::uint32_t upper[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    if constexpr (kKind.table) {
#pragma unroll
      for (int i = 0; i < 4; ++i) look_up(args, upper[i], a[2 * i], a[2 * i + 1]);
    } else if constexpr (kLower == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[2 * i] = upper[i] & 0x0f0f0f0f;
        a[2 * i + 1] = upper[i] >> 4 & 0x0f0f0f0f;
      }
    } else {
      std::uint32_t lower[kLower];
      load_words(tile + kUpperBytes + (span * 32 + lane) * kLower * 4, lower);
      constexpr std::uint32_t kNibbles = 0x0f0f0f0fu << kLower;
      constexpr std::uint32_t kBits = ((1u << kLower) - 1) * 0x01010101;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t word = upper[i / 2], low = lower[i * kLower / 8];
        const int up = kLower - i % 2 * 4;  // by how much a nibble is shifted
        const std::uint32_t shifted = up >= 0 ? word << (up & 31) : word >> (-up & 31);
        a[i] = (shifted & kNibbles) | (low >> (i * kLower % 8) & kBits);
      }
    }
  }
  template <int kWords>
  __device__ static void load_words(std::uint32_t place, std::uint32_t (&words)[kWords]) {
    if constexpr (kWords == 4) {
      const uint4 x = load_shared16(place);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (kWords == 2) {
      const uint2 x = load_shared8(place);
      words[0] = x.x, words[1] = x.y;
    } else {
      words[0] = load_shared4(place);
    }
  }
  // The values of a word's nibbles, those of rows g and of rows g + 8. __byte_perm() looks 4
  // nibbles up among 8 bytes; the fourth bit of each chooses between two such tables.
  __device__ static void look_up(const LinearArgs& args, std::uint32_t word, std::uint32_t& first,
                                 std::uint32_t& second) {
    const std::uint32_t(&table)[4] = args.code_table;
    std::uint32_t pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i, word >>= 16) {
      const std::uint32_t nibbles = word & 0x7777;
      const std::uint32_t low = __byte_perm(table[0], table[1], nibbles);
      const std::uint32_t high = __byte_perm(table[2], table[3], nibbles);
      pairs[i] = __byte_perm(low, high, 0x3210 | (word & 0x8888) >> 1);
    }
    first = __byte_perm(pairs[0], pairs[1], 0x6420);
    second = __byte_perm(pairs[0], pairs[1], 0x7531);
  }
};

}  // namespace quantspec::cuda
