// W x from the planes of W: integer dots of codes and quantized activations, 64 bytes of a plane at
// a time (the tile of packing.h). Included by kernels_*.cc after one simd_*.h.
//
// For one group of 64 or 128 inputs, with code b, weight = offset + scale * b, and x ~ step * c:
//
//     sum over k of weight[k] x[k]  ~  step * (scale * sum(b c) + offset * sum(c))
//
// NOTE: sum(c), not the exact sum of x: the rounding errors of x then meet weights, which are
// centred, and not codes, which are not. At 4 bits b is 16 u + 7.5 and c is one signed byte; at 8
// bits c is split into 128 h + l (15 bits). Relative error of W x on pg-24m's matrices, inputs
// normal / heavy-tailed (normal, cubed): 8 bits 0.6% / 0.6% with c split as with exact inputs, but
// 0.9% / 1.5% with one byte; 4 bits 10% / 10% in either way.
#pragma once

#include "backend/cpu/elementwise-inl.h"

namespace quantspec::cpu {
namespace {

constexpr int kPlaneRows = kRegisters >= 32 ? 4 : 1;
constexpr int kTileSize = 64;  // kTileBytes
constexpr int kPlanePrefetch = 1024;

// Blocks of 16 outputs that are computed side by side for so many rows. Each is a stream of its own
// from memory. NOTE: one stream is too few for the processor's prefetchers: 79% of the bandwidth of
// plain reads, two 88%, four 91%.
template <int kRows>
constexpr int kPlaneBlocks = kRegisters >= 32                ? 4 / kRows
                             : kRegisters >= 8 && kRows == 1 ? 2
                                                             : 1;

// Quantizes row `row` of activations, one step per group; the codes of a group are its inputs times
// 1 / step, rounded. NOTE: a group without a normal number has codes 0; one with a NaN or an
// infinity has step NaN, which reaches every output, as it does in exact arithmetic.
void quantize_row(const float* x, int inputs, bool split, const QuantizedRows& out, int row) {
  std::int8_t* high = out.codes + static_cast<std::ptrdiff_t>(row) * 2 * out.padded;
  std::int8_t* low = high + out.padded;
  float* scales = out.scales + static_cast<std::ptrdiff_t>(row) * 2 * out.groups;
  const float most = split ? 127.0f * 128.0f : 127.0f;
  for (int group = 0; group < out.groups; ++group) {
    const int first = group * out.group;
    const int count = inputs - first < out.group ? inputs - first : out.group;
    F32 magnitude = zero_f32();
    for_lanes(count, [&](int i, int n) {
      magnitude = max_magnitude(magnitude, load_run(x + first + i, n));
    });
    const float greatest = reduce_max_magnitude(magnitude);
    const bool finite = greatest <= 3.4028234663852886e38f;
    const F32 inverse = set1(finite && greatest > 1e-30f ? most / greatest : 0.0f);
    F32 sum = zero_f32();
    for_lanes(count, [&](int i, int n) {
      const F32 v = finite ? load_run(x + first + i, n) * inverse : zero_f32();
      const I32 code = round_i32(v);
      const I32 h = split ? shift_right<7>(code + set1(std::int32_t{64})) : code;
      store_s8(high + first + i, h);
      store_s8(low + first + i, code - (split ? shift_left<7>(h) : code));
      sum = sum + to_f32(code);
    });
    const float step = finite ? greatest / most : __builtin_nanf("");
    scales[group] = step;
    scales[out.groups + group] = step * reduce_add(sum);
  }
}

// Codes of 16 outputs x 8 inputs, first and last four, in the bytes that dot() takes. With byte
// dots and no lower plane, `last` is 16 times too large; without byte dots the planes stay apart.
template <bool kLower>
struct PlaneTile {
  U8x64 first, last, lower_first, lower_last;

  QS_INLINE PlaneTile(const std::byte* upper, const std::byte* lower) {
    const U8x64 u = load_u8(upper);
    first = low_nibbles(u);
    last = kByteDot ? high_nibbles_in_place(u) : high_nibbles(u);
    if constexpr (kLower) {
      const U8x64 l = load_u8(lower);
      if constexpr (kMergedDot) {
        first = merge_low(u, l);
        last = merge_high(u, l);
      } else {
        lower_first = low_nibbles(l);
        lower_last = high_nibbles(l);
      }
    }
  }
};

QS_INLINE std::int32_t four_codes(const std::int8_t* codes) {
  std::int32_t four;
  __builtin_memcpy(&four, codes, 4);
  return four;
}

// The integer dot products of 16 outputs and one row over the tiles of one group. Four sums, so
// that none waits for another: integer sums are exact in any order.
template <bool kLower>
struct PlaneDots {
  I32 a, b, c, d;

  QS_INLINE void clear() { a = b = c = d = zero_i32(); }

  // `x`: the eight codes of this tile's inputs; `padded` further, their low parts.
  QS_INLINE void add(const PlaneTile<kLower>& tile, const std::int8_t* x, int padded) {
    const std::int32_t high[] = {four_codes(x), four_codes(x + 4)};
    if constexpr (!kLower) {
      a = dot(a, tile.first, high[0]);
      b = dot(b, tile.last, high[1]);
    } else {
      const std::int32_t low[] = {four_codes(x + padded), four_codes(x + padded + 4)};
      if constexpr (kMergedDot) {
        a = dot(a, tile.first, high[0]);
        b = dot(b, tile.last, high[1]);
        c = dot(c, tile.first, low[0]);
        d = dot(d, tile.last, low[1]);
      } else {
        a = dot(dot(a, tile.first, high[0]), tile.last, high[1]);
        b = dot(dot(b, tile.first, low[0]), tile.last, low[1]);
        c = dot(dot(c, tile.lower_first, high[0]), tile.lower_last, high[1]);
        d = dot(dot(d, tile.lower_first, low[0]), tile.lower_last, low[1]);
      }
    }
  }

  QS_INLINE F32 total() const {
    if constexpr (!kLower) {
      return to_f32(kByteDot ? shift_left<4>(a) + b : shift_left<4>(a + b));
    } else if constexpr (kMergedDot) {
      return to_f32(shift_left<7>(a + b) + (c + d));
    } else {
      return to_f32(shift_left<7>(shift_left<4>(a) + c) + (shift_left<4>(b) + d));
    }
  }
};

template <bool kLower, int kRows>
QS_INLINE void write_block(const F32* sum, const LinearOutput& out, int row, int output, int n) {
  for (int r = 0; r < kRows; ++r) {
    float* y = out.y + (row + r) * out.stride + output;
    F32 value = sum[r];
    if (out.bias != nullptr) value = value + load_run(out.bias + output, n);
    store_run(y, out.accumulate ? load_run(y, n) + value : value, n);
  }
}

// Where a plane's blocks lie.
struct PlaneStream {
  const std::byte* at;
  std::ptrdiff_t stride;   // from block to block
  const std::byte* end;    // of the first block
  const std::byte* below;  // what is read after these blocks

  // What to prefetch meanwhile, of the first block.
  QS_INLINE const std::byte* ahead() const {
    const std::byte* p = at + kPlanePrefetch;
    return p < end ? p : below + (p - end);
  }
};

// The planes of g from a block on, `count` blocks side by side.
QS_INLINE PlaneStream plane_stream(const PlaneGemv& g, const std::byte* plane,
                                   std::ptrdiff_t block_bytes, const std::byte* next, int block,
                                   int count) {
  const std::byte* at = plane + block * block_bytes;
  const bool last = next != nullptr && (block + count) * kLanes >= g.outputs;
  return {at, block_bytes, at + block_bytes, last ? next : at + count * block_bytes};
}

// kBlocks blocks of 16 outputs for kRows rows.
template <bool kLower, int kRows, int kBlocks>
__attribute__((noinline)) void plane_block(const PlaneGemv& g, int row, int block) {
  const int tiles = (g.inputs + 7) / 8;
  const int group_tiles = g.x.group / 8;
  const std::ptrdiff_t lower_bytes = tiles * std::ptrdiff_t{kTileSize};
  const std::ptrdiff_t upper_bytes = lower_bytes + g.x.groups * std::ptrdiff_t{64};
  PlaneStream upper = plane_stream(g, g.upper, upper_bytes, g.next_upper, block, kBlocks);
  PlaneStream lower{};
  if constexpr (kLower) {
    lower = plane_stream(g, g.lower, lower_bytes, g.next_lower, block, kBlocks);
  }
  F32 sum[kBlocks * kRows];  // [kBlocks, kRows]
  for (F32& s : sum) s = zero_f32();
  for (int group = 0; group < g.x.groups; ++group) {
    const std::byte* scales = upper.at;
    upper.at += 64;
    const std::byte* upper_ahead = upper.ahead();
    const std::byte* lower_ahead = kLower ? lower.ahead() : nullptr;
    PlaneDots<kLower> dots[kBlocks * kRows];
    for (auto& d : dots) d.clear();
    const int first = group * group_tiles;
    const int last = first + group_tiles < tiles ? first + group_tiles : tiles;
#pragma GCC unroll 4
    for (int t = first; t < last; ++t) {
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) {
        prefetch(upper_ahead + b * upper_bytes);
        if constexpr (kLower) prefetch(lower_ahead + b * lower_bytes);
        const PlaneTile<kLower> tile(upper.at + b * upper_bytes,
                                     kLower ? lower.at + b * lower_bytes : nullptr);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const std::int8_t* x = g.x.codes + std::ptrdiff_t{2} * (row + r) * g.x.padded + 8 * t;
          dots[b * kRows + r].add(tile, x, g.x.padded);
        }
      }
      upper.at += kTileSize;
      upper_ahead += kTileSize;
      if constexpr (kLower) {
        lower.at += kTileSize;
        lower_ahead += kTileSize;
      }
    }
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const auto* fp16 = reinterpret_cast<const std::uint16_t*>(scales + b * upper_bytes);
      const F32 scale = load_f16(fp16);
      F32 offset = load_f16(fp16 + kLanes);
      if constexpr (!kLower) offset = fma(scale, set1(7.5f), offset);
      if constexpr (kLower && kMergedCentre != 0) {
        offset = fma(scale, set1(static_cast<float>(kMergedCentre)), offset);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float* x = g.x.scales + std::ptrdiff_t{2} * (row + r) * g.x.groups + group;
        F32& s = sum[b * kRows + r];
        s = fma(dots[b * kRows + r].total() * set1(x[0]), scale, s);
        s = fma(offset, set1(x[g.x.groups]), s);
      }
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    const int output = (block + b) * kLanes;
    const int n = g.outputs - output < kLanes ? g.outputs - output : kLanes;
    write_block<kLower, kRows>(sum + b * kRows, g.out, row, output, n);
  }
}

// Rows [row, g.rows) of kBlocks blocks in tiles of kRows, what is left in smaller ones.
template <bool kLower, int kRows, int kBlocks>
void plane_rows(const PlaneGemv& g, int row, int block) {
  for (; row + kRows <= g.rows; row += kRows) {
    plane_block<kLower, kRows, kBlocks>(g, row, block);
  }
  if constexpr (kRows > 1) {
    if (row < g.rows) plane_rows<kLower, kRows / 2, kBlocks>(g, row, block);
  }
}

// All blocks for tiles of at most kRows rows, and of less where there are not as many.
template <bool kLower, int kRows>
void plane_blocks(const PlaneGemv& g) {
  if constexpr (kRows > 1) {
    if (g.rows < kRows) return plane_blocks<kLower, kRows / 2>(g);
  }
  constexpr int kBlocks = kPlaneBlocks<kRows>;
  const int blocks = (g.outputs + kLanes - 1) / kLanes;
  int block = 0;
  for (; block + kBlocks <= blocks; block += kBlocks) {
    plane_rows<kLower, kRows, kBlocks>(g, 0, block);
  }
  for (; block < blocks; ++block) plane_rows<kLower, kRows, 1>(g, 0, block);
}

void plane_gemv(const PlaneGemv& g) {
  g.lower != nullptr ? plane_blocks<true, kPlaneRows>(g) : plane_blocks<false, kPlaneRows>(g);
}

bool extremes(const float* x, int count, float* min_out, float* max_out) {
  F32 least = set1(x[0]), most = least, magnitude = zero_f32();
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F32 v = load(x + i);
    least = min(least, v);
    most = max(most, v);
    magnitude = max_magnitude(magnitude, v);
  }
  magnitude = max_magnitude(magnitude, load_n(x + i, count - i));
  *min_out = reduce_min(least);
  *max_out = reduce_max(most);
  for (; i < count; ++i) {
    *min_out = x[i] < *min_out ? x[i] : *min_out;
    *max_out = x[i] > *max_out ? x[i] : *max_out;
  }
  return reduce_max_magnitude(magnitude) <= 3.4028234663852886e38f;
}

void encode_codes(const float* x, int count, float scale, float offset, std::int8_t* codes) {
  for_lanes(count, [&](int i, int n) {
    // The same arithmetic as encode() in quant.h: exact equality is tested.
    const F32 v = (load_run(x + i, n) - set1(offset)) / set1(scale);
    const F32 clamped = min(max(v, zero_f32()), set1(255.0f));
    store_s8(codes + i, round_i32(clamped) - set1(std::int32_t{128}));
  });
}

}  // namespace
}  // namespace quantspec::cpu
