// W x at full precision for few rows: bound by reading W. Included by kernels_*.cc after one
// simd_*.h and elementwise-inl.h.
//
// Exactness: a segment of y of one (output, row) is one 16-lane accumulator that walks the inputs
// in one order (bf16: the even and then the odd ones of each 32) and one fixed reduction; segments
// are added as a tree. Tiles of several outputs and rows only share loads, so they never change a
// bit.
#pragma once

#include "backend/cpu/elementwise-inl.h"

namespace quantspec::cpu {
namespace {

// NOTE: more rows would leave fewer outputs and so too few loads in flight: two tiles of 4 or 5
// rows take 30% less time than one of 9.
constexpr int kMaxTileRows = kRegisters >= 32 ? 6 : kRegisters >= 8 ? 4 : 2;

constexpr int kMaxTileOutputs = 8;

// Outputs of a tile of this many rows: accumulators, weights and one input in registers.
constexpr int tile_outputs(int rows) {
  for (int outputs = kMaxTileOutputs; outputs > 1; outputs /= 2) {
    if (outputs * rows + outputs + 1 <= kRegisters) return outputs;
  }
  return 1;
}

constexpr std::ptrdiff_t padded_inputs(int inputs) {
  return static_cast<std::ptrdiff_t>(inputs + kInputBlock - 1) / kInputBlock * kInputBlock;
}

// Calls f(first row, number of rows) for the tiles of rows: as few and as equal as can be.
template <typename F>
QS_INLINE void for_row_tiles(int rows, const F& f) {
  const int tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int tile = 0, row = 0; tile < tiles; ++tile) {
    const int count = (rows - row + tiles - tile - 1) / (tiles - tile);
    f(row, count);
    row += count;
  }
}

// Inputs in the order in which the tiles read them: [tiles of rows][blocks][rows of the tile]
// [kInputBlock], a block in the order of the parts of the weights.
template <typename Elements>
void arrange(const float* x, int rows, int inputs, float* out) {
  static_assert(kInputBlock == 2 * kLanes);
  for_row_tiles(rows, [&](int first, int count) {
    for (int k = 0; k < inputs; k += kInputBlock) {
      const int n = inputs - k < kInputBlock ? inputs - k : kInputBlock;
      for (int row = first; row < first + count; ++row, out += kInputBlock) {
        const float* in = x + static_cast<std::ptrdiff_t>(row) * inputs + k;
        const F32 a = load_run(in, n < kLanes ? n : kLanes);
        const F32 b = n > kLanes ? load_run(in + kLanes, n - kLanes) : zero_f32();
        store(out, Elements::kParts == 2 ? even_lanes(a, b) : a);
        store(out + kLanes, Elements::kParts == 2 ? odd_lanes(a, b) : b);
      }
    }
  });
}

// While a tile is computed, the one below (or the first of what the thread reads next) is
// prefetched from its first byte to its last: in this order the hardware's prefetcher runs further
// ahead. NOTE: where a tile is too large for that, each of its rows is prefetched at this distance,
// which at a row's end is in the tile below.
constexpr int kPrefetchBytes = 768;
constexpr int kMaxPrefetchTile = 16 * 1024;

// kSegments: whether sums have more than one. NOTE: as an argument it costs short rows 3 to 7%.
template <typename Elements, int kOutputs, int kRows, bool kSegments>
struct FullTile {
  using T = typename Elements::Type;
  static constexpr int kStep = kLanes * Elements::kParts;
  static constexpr int kLine = 64 / sizeof(T);

  static constexpr int kSums = kRows * kOutputs;
  F32 sum[kSums];       // [kRows][kOutputs], of a segment
  float values[kSums];  // what the lanes come to

  // kInputBlock terms of every sum. w: rows of W, `stride` apart; x: [kRows, kInputBlock].
  QS_INLINE void add_block(const T* w, std::ptrdiff_t stride, const float* x) {
#pragma GCC unroll 2
    for (int k = 0; k < kInputBlock; k += kStep, w += kStep) {
#pragma GCC unroll 2
      for (int part = 0; part < Elements::kParts; ++part) {
        F32 weights[kOutputs];
#pragma GCC unroll 16
        for (int o = 0; o < kOutputs; ++o) weights[o] = Elements::part(w + o * stride, part);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const F32 in = in_register(load(x + r * kInputBlock + k + part * kLanes));
#pragma GCC unroll 16
          for (int o = 0; o < kOutputs; ++o) {
            F32& s = sum[r * kOutputs + o];
            s = fma(weights[o], in, s);
          }
        }
      }
    }
  }

  // All terms. below: what this thread reads next, as many rows of as many inputs.
  QS_INLINE void run(const FullGemv& g, const T* w, const float* x, const T* below) {
    SegmentTree<float, kSums> tree;
    int inputs = g.inputs;
    const std::ptrdiff_t stride = inputs;
    const bool whole = kOutputs * stride * std::ptrdiff_t{sizeof(T)} <= kMaxPrefetchTile;
    constexpr int kDistance = kPrefetchBytes / sizeof(T);
    const T* next = whole ? below : w + kDistance;
    const std::ptrdiff_t next_step = whole ? kInputBlock * kOutputs : kInputBlock;
    const std::ptrdiff_t next_stride = whole ? kInputBlock : stride;
    const int row_end = whole ? 0 : kDistance / kInputBlock * kInputBlock + inputs % kInputBlock;
    for (int segment = 0;; ++segment) {
      const int left = kSegments ? g.inputs - g.segments.at[segment] : 0;  // behind the segment
#pragma GCC unroll 32
      for (int i = 0; i < kSums; ++i) sum[i] = zero_f32();
      for (; inputs - left >= kInputBlock; inputs -= kInputBlock) {
        if (inputs == row_end) next = below;
#pragma GCC unroll 16
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 2
          for (int k = 0; k < kInputBlock; k += kLine) prefetch(next + o * next_stride + k);
        }
        next += next_step;
        add_block(w, stride, x);
        w += kInputBlock;
        x += kRows * kInputBlock;
      }
      if (inputs > left) {
        T rest[kOutputs * kInputBlock] = {};
        for (int o = 0; o < kOutputs; ++o) {
          __builtin_memcpy(rest + o * kInputBlock, w + o * stride, inputs * sizeof(T));
        }
        add_block(rest, kInputBlock, x);
      }
      reduce();
      if constexpr (!kSegments) return;
      const bool last = segment + 1 == g.segments.count;
      tree.add(segment, values, last);
      if (last) return;
    }
  }

  QS_INLINE void reduce() {
    constexpr int kSixteens = kSums / 16 * 16, kFours = kSums / 4 * 4;
#pragma GCC unroll 2
    for (int i = 0; i < kSixteens; i += 16) reduce_add16(sum + i, values + i);
#pragma GCC unroll 3
    for (int i = kSixteens; i < kFours; i += 4) reduce_add4(sum + i, values + i);
#pragma GCC unroll 3
    for (int i = kFours; i < kSums; ++i) values[i] = reduce_add(sum[i]);
  }

  QS_INLINE void write(const LinearOutput& out, int output, int row) const {
    for (int r = 0; r < kRows; ++r) {
      float* y = out.y + (row + r) * out.stride + output;
      for (int o = 0; o < kOutputs; ++o) {
        const float value = values[r * kOutputs + o];
        if (out.bias == nullptr) {
          y[o] = out.accumulate ? y[o] + value : value;
        } else {
          y[o] = (out.accumulate ? y[o] + out.bias[output + o] : out.bias[output + o]) + value;
        }
      }
    }
  }
};

template <typename Elements, int kOutputs, int kRows, bool kSegments>
__attribute__((noinline)) void full_tile(const FullGemv& g, int output, int row) {
  FullTile<Elements, kOutputs, kRows, kSegments> tile;
  const auto* w = static_cast<const typename Elements::Type*>(g.weights) +
                  static_cast<std::ptrdiff_t>(output) * g.inputs;
  const auto* below = w + kOutputs * static_cast<std::ptrdiff_t>(g.inputs);
  if (g.next != nullptr && output + kOutputs >= g.outputs) {
    below = static_cast<const typename Elements::Type*>(g.next);
  }
  tile.run(g, w, g.x + row * padded_inputs(g.inputs), below);
  tile.write(g.out, output, row);
}

// Outputs [output, last) for rows [row, row + count), count <= kRows.
template <typename Elements, int kRows, bool kSegments>
void full_rows(const FullGemv& g, int output, int last, int row, int count) {
  if constexpr (kRows > 1) {
    if (count < kRows)
      return full_rows<Elements, kRows - 1, kSegments>(g, output, last, row, count);
  }
  constexpr int kOutputs = tile_outputs(kRows);
  for (; output + kOutputs <= last; output += kOutputs) {
    full_tile<Elements, kOutputs, kRows, kSegments>(g, output, row);
  }
  for (; output < last; ++output) full_tile<Elements, 1, kRows, kSegments>(g, output, row);
}

// Tiles of rows take turns over a few outputs, whose weights stay in the nearest cache; where the
// inputs of all rows would not fit beside them, over all outputs.
constexpr std::size_t kNearBytes = 40 * 1024;

template <typename Elements, bool kSegments>
void full_outputs(const FullGemv& g) {
  const std::size_t near =
      g.inputs * (sizeof(float) * g.rows + sizeof(typename Elements::Type) * kMaxTileOutputs);
  const int step = g.rows <= kMaxTileRows || near > kNearBytes ? g.outputs : kMaxTileOutputs;
  for (int output = 0; output < g.outputs; output += step) {
    const int last = output + step < g.outputs ? output + step : g.outputs;
    for_row_tiles(g.rows, [&](int row, int count) {
      full_rows<Elements, kMaxTileRows, kSegments>(g, output, last, row, count);
    });
  }
}

template <typename Elements>
void full_gemv(const FullGemv& g) {
  g.segments.count > 1 ? full_outputs<Elements, true>(g) : full_outputs<Elements, false>(g);
}

}  // namespace
}  // namespace quantspec::cpu
