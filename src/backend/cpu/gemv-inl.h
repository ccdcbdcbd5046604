// W x at full precision for few rows: bound by reading W. Included by kernels_*.cc after one
// simd_*.h and elementwise-inl.h.
//
// Exactness: y of one (output, row) is one 16-lane accumulator that walks the inputs in order, one
// fixed reduction, then the bias. Tiles of several outputs and rows only share loads, so they never
// change a bit.
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

// How far ahead each of a tile's streams of weights is prefetched. NOTE: hardware prefetchers stop
// at the row ends of a tile of several streams.
constexpr int kPrefetchBytes = 2048;

template <typename Elements, int kOutputs, int kRows>
struct FullTile {
  using T = typename Elements::Type;
  static constexpr int kLine = 64 / sizeof(T);
  static constexpr int kAhead = kPrefetchBytes / sizeof(T);

  const T* w;
  const float* x;
  int inputs;
  F32 sum[kRows][kOutputs];

  QS_INLINE void step(int k, int n) {
    F32 weights[kOutputs];
#pragma GCC unroll 16
    for (int o = 0; o < kOutputs; ++o) {
      const T* p = w + static_cast<std::ptrdiff_t>(o) * inputs + k;
      weights[o] = n == kLanes ? Elements::at(p) : Elements::at_n(p, n);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32 in = load_run(x + static_cast<std::ptrdiff_t>(r) * inputs + k, n);
#pragma GCC unroll 16
      for (int o = 0; o < kOutputs; ++o) sum[r][o] = fma(weights[o], in, sum[r][o]);
    }
  }

  QS_INLINE void prefetch_line(int k) const {
    // Past the end of its row a stream goes on in the tile below.
    const std::ptrdiff_t next = k + kAhead < inputs ? 0 : (kOutputs - 1) * std::ptrdiff_t{inputs};
#pragma GCC unroll 16
    for (int o = 0; o < kOutputs; ++o) {
      prefetch(w + static_cast<std::ptrdiff_t>(o) * inputs + k + kAhead + next);
    }
  }

  QS_INLINE void run() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int o = 0; o < kOutputs; ++o) sum[r][o] = zero_f32();
    }
    int k = 0;
    for (; k + kLine <= inputs; k += kLine) {
      prefetch_line(k);
#pragma GCC unroll 4
      for (int i = 0; i < kLine; i += kLanes) step(k + i, kLanes);
    }
    for (; k + kLanes <= inputs; k += kLanes) step(k, kLanes);
    if (k < inputs) step(k, inputs - k);
  }

  QS_INLINE void write(const LinearOutput& out, int output, int row) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float values[kOutputs];
      if constexpr (kOutputs % 4 == 0) {
        for (int o = 0; o < kOutputs; o += 4) reduce_add4(&sum[r][o], values + o);
      } else {
        for (int o = 0; o < kOutputs; ++o) values[o] = reduce_add(sum[r][o]);
      }
      float* y = out.y + (row + r) * out.stride + output;
      for (int o = 0; o < kOutputs; ++o) {
        const float value = out.bias != nullptr ? values[o] + out.bias[output + o] : values[o];
        y[o] = out.accumulate ? y[o] + value : value;
      }
    }
  }
};

template <typename Elements, int kOutputs, int kRows>
__attribute__((noinline)) void full_tile(const FullGemv& g, int output, int row) {
  FullTile<Elements, kOutputs, kRows> tile;
  tile.w = static_cast<const typename Elements::Type*>(g.weights) +
           static_cast<std::ptrdiff_t>(output) * g.inputs;
  tile.x = g.x + static_cast<std::ptrdiff_t>(row) * g.inputs;
  tile.inputs = g.inputs;
  tile.run();
  tile.write(g.out, output, row);
}

// Outputs [output, last) for rows [row, row + count), count <= kRows.
template <typename Elements, int kRows>
void full_rows(const FullGemv& g, int output, int last, int row, int count) {
  if constexpr (kRows > 1) {
    if (count < kRows) return full_rows<Elements, kRows - 1>(g, output, last, row, count);
  }
  constexpr int kOutputs = tile_outputs(kRows);
  for (; output + kOutputs <= last; output += kOutputs) {
    full_tile<Elements, kOutputs, kRows>(g, output, row);
  }
  for (; output < last; ++output) full_tile<Elements, 1, kRows>(g, output, row);
}

template <typename Elements>
void full_gemv(const FullGemv& g) {
  const int tiles = (g.rows + kMaxTileRows - 1) / kMaxTileRows;
  const int step = tiles == 1 ? g.outputs : kMaxTileOutputs;
  for (int output = 0; output < g.outputs; output += step) {
    const int last = output + step < g.outputs ? output + step : g.outputs;
    for (int tile = 0, row = 0; tile < tiles; ++tile) {
      const int count = (g.rows - row + tiles - tile - 1) / (tiles - tile);
      full_rows<Elements, kMaxTileRows>(g, output, last, row, count);
      row += count;
    }
  }
}

}  // namespace
}  // namespace quantspec::cpu
