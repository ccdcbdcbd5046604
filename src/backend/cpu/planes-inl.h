// W x from the planes of W: integer dots of codes and quantized activations, 64 bytes of a plane at
// a time (the tile of packing.h). Included by kernels_*.cc after one simd_*.h.
//
// For one group of inputs, with code b, weight = scale * (b + centre) + offset, and x ~ step * c:
//
//     sum over k of weight[k] x[k]  ~  step * (scale * sum(b c) + (offset + scale * centre) *
//     sum(c))
//
// NOTE: sum(c), not the exact sum of x: the rounding errors of x then meet weights, which are
// centred, and not codes, which are not. A draft that reads four bits has c of one byte; others
// split c into 128 h + l (15 bits). Relative error of W x on pg-24m's matrices in groups of 128,
// inputs normal / heavy-tailed (normal, cubed): 8 bits 0.6% / 0.6% with c split as with exact
// inputs, but 0.9% / 1.5% with one byte; 4 bits 10% / 10% in either way.
//
#pragma once

#include "backend/cpu/elementwise-inl.h"
#include "backend/cpu/plane_dots-inl.h"

namespace quantspec::cpu {
namespace {

// Rows that are computed side by side at most. NOTE: the sums of more leave no registers for tiles:
// six rows of Q4_K, as one tile, take twice as long as four and two.
constexpr int kPlaneRows = kRegisters >= 32 ? 4 : 1;

// Every line of a plane is asked for twice: far ahead for the second cache, which waits for many
// lines at a time, then near for the first, which waits for few. NOTE: blocks of short rows end
// before the processor's own prefetchers have found them: asking once, 1024 ahead, costs 8% of
// decoding with Q4_K at one row, most of it at rows of 1,536 inputs.
constexpr std::ptrdiff_t kNearPrefetch = 512;
constexpr std::ptrdiff_t kFarPrefetch = 1536;

struct LinesAhead {
  const std::byte* near;
  const std::byte* far;

  QS_INLINE void prefetch_at(std::ptrdiff_t offset) const {
    prefetch(near + offset);
    prefetch_to_l2(far + offset);
  }
  QS_INLINE void advance(std::ptrdiff_t bytes) {
    near += bytes;
    far += bytes;
  }
};

// Blocks of 16 outputs that are computed side by side for so many rows. Each is a stream of its own
// from memory. NOTE: one stream is too few for the processor's prefetchers: 79% of the bandwidth of
// plain reads, two 88%, four 91%. But two rows of two blocks with codes of 5 or 6 bits have more
// sums than there are registers, and take twice as long as two rows of one block.
template <typename Codes, int kRows>
constexpr int kPlaneBlocks = kRegisters >= 32 && kRows == 2 && Codes::kLineTiles > 1 ? 1
                             : kRegisters >= 32 && kRows <= 2                        ? 4 / kRows
                             : kRegisters >= 8 && kRows == 1                         ? 2
                                                                                     : 1;

template <int kRows>
QS_INLINE void write_block(const F32* sum, const LinearOutput& out, int row, int output, int n) {
  for (int r = 0; r < kRows; ++r) {
    float* y = out.y + (row + r) * out.stride + output;
    F32 value = sum[r];
    if (out.bias != nullptr) {
      const F32 bias = load_run(out.bias + output, n);
      value = (out.accumulate ? load_run(y, n) + bias : bias) + value;
    } else if (out.accumulate) {
      value = load_run(y, n) + value;
    }
    store_run(y, value, n);
  }
}

// Where a plane's blocks lie.
struct PlaneStream {
  const std::byte* at;
  std::ptrdiff_t stride;   // from block to block
  const std::byte* end;    // of the first block
  const std::byte* below;  // what is read after these blocks

  // What to prefetch meanwhile, of the first block.
  QS_INLINE LinesAhead ahead() const { return {ahead(kNearPrefetch), ahead(kFarPrefetch)}; }

 private:
  QS_INLINE const std::byte* ahead(std::ptrdiff_t distance) const {
    const std::byte* p = at + distance;
    return p < end ? p : below + (p - end);
  }
};

// A plane of g from a block on, `count` blocks side by side.
QS_INLINE PlaneStream plane_stream(const PlaneGemv& g, const std::byte* plane,
                                   std::ptrdiff_t block_bytes, const std::byte* next, int block,
                                   int count) {
  const std::byte* at = plane + block * block_bytes;
  const bool last = next != nullptr && (block + count) * kLanes >= g.outputs;
  return {at, block_bytes, at + block_bytes, last ? next : at + count * block_bytes};
}

// What kBlocks blocks of 16 outputs have for kRows rows: sums, [kBlocks, kRows] of everything.
template <typename Codes, bool kSplit, int kRows, int kBlocks>
struct PlaneBlock {
  static constexpr int kDots = kBlocks * kRows;
  using Dots = RowDots<Codes, kSplit>;

  const PlaneGemv& g;
  const int row;
  PlaneTable<Codes> table;
  PlaneStream upper, lower;

  QS_INLINE PlaneBlock(const PlaneGemv& gemv, int first_row, int block)
      : g(gemv),
        row(first_row),
        table(g.format.values),
        upper(plane_stream(g, g.upper, g.upper_bytes, g.next_upper, block, kBlocks)),
        lower{} {
    if constexpr (Codes::kLower > 0) {
      lower = plane_stream(g, g.lower, g.lower_bytes, g.next_lower, block, kBlocks);
    }
  }

  QS_INLINE const std::byte* take_header() {
    const std::byte* header = upper.at;
    for (int i = 0; i < g.format.header_bytes; i += kTileSize) {
      for (int b = 0; b < kBlocks; ++b) upper.ahead().prefetch_at(b * g.upper_bytes);
      upper.at += kTileSize;
    }
    return header;
  }

  // The tiles of one line of the lower plane, from tile t on.
  QS_INLINE void add_line(int t, const LinesAhead& upper_ahead, const LinesAhead& lower_ahead,
                          Dots (&dots)[kDots]) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      U8x64 line{};
      if constexpr (Codes::kLower > 0) {
        lower_ahead.prefetch_at(b * g.lower_bytes);
        line = load_u8(lower.at + b * g.lower_bytes);
      }
      for_constants<Codes::kLineTiles>([&]<int kTile>() {
        upper_ahead.prefetch_at(b * g.upper_bytes + kTile * kTileSize);
        PlaneTile<Codes> tile;
        tile.template read<kTile>(upper.at + b * g.upper_bytes + kTile * kTileSize, line, table);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const std::int8_t* x = g.x.codes + std::ptrdiff_t{2} * (row + r) * g.x.padded;
          dots[b * kRows + r].add(tile, x + kTileInputs * (t + kTile), g.x.padded);
        }
      });
    }
    upper.at += kTileSize * Codes::kLineTiles;
    if constexpr (Codes::kLower > 0) lower.at += kTileSize;
  }

  QS_INLINE void add_group(int first, int last, Dots (&dots)[kDots]) {
    LinesAhead upper_ahead = upper.ahead(), lower_ahead{};
    if constexpr (Codes::kLower > 0) lower_ahead = lower.ahead();
#pragma GCC unroll 4
    for (int t = first; t < last; t += Codes::kLineTiles) {
      add_line(t, upper_ahead, lower_ahead, dots);
      upper_ahead.advance(kTileSize * Codes::kLineTiles);
      if constexpr (Codes::kLower > 0) lower_ahead.advance(kTileSize);
    }
  }

  // Adds what the dots of a group come to; it is the index-th behind its header.
  QS_INLINE void finish_group(int group, const std::byte* header, int index,
                              const Dots (&dots)[kDots], F32 (&sum)[kDots]) {
    constexpr float kUnit = Codes::kNibbles ? 1.0f / 16 : 1.0f;
    constexpr float kCentre = Codes::kWide && kMergedDot ? kMergedCentre : 0;
    const float centre = g.centre + g.factor * kCentre;
    const int parts = g.x.step / g.format.group;  // a power of two, as x.parts is
    const int step = group >> __builtin_ctz(static_cast<unsigned>(parts));
    const int part = parts + (group & (parts - 1));
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      auto [scale, offset] = group_lanes(g.format, header + b * g.upper_bytes, index);
      if (centre != 0.0f) offset = fma(scale, set1(centre), offset);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const std::ptrdiff_t at = std::ptrdiff_t{row + r} * g.x.steps + step;
        const float* record = g.x.records + at * 2 * g.x.parts;
        F32& s = sum[b * kRows + r];
        s = fma(dots[b * kRows + r].total() * set1(record[0] * (g.factor * kUnit)), scale, s);
        s = fma(offset, set1(record[part]), s);
      }
    }
  }
};

// kSegments: whether sums have more than one segment.
template <typename Codes, bool kSplit, bool kSegments, int kRows, int kBlocks>
__attribute__((noinline)) void plane_block(const PlaneGemv& g, int row, int block) {
  using Block = PlaneBlock<Codes, kSplit, kRows, kBlocks>;
  Block planes(g, row, block);
  SegmentTree<F32, kBlocks * kRows> tree;
  F32 sum[kBlocks * kRows];
  const int tiles = (g.inputs + kTileInputs - 1) / kTileInputs;
  const int group_tiles = g.format.group / kTileInputs;
  const std::byte* header = nullptr;
  int index = 0;  // of the group behind its header
  for (int segment = 0, group = 0, first = 0;; ++segment) {
    const int end = kSegments ? (g.segments.at[segment] + kTileInputs - 1) / kTileInputs : tiles;
    for (F32& s : sum) s = zero_f32();
    for (; first < end; ++group, first += group_tiles) {
      if (index == 0) header = planes.take_header();
      typename Block::Dots dots[kBlocks * kRows];
      for (auto& d : dots) d.clear();
      planes.add_group(first, first + group_tiles < tiles ? first + group_tiles : tiles, dots);
      planes.finish_group(group, header, index, dots, sum);
      index = index + 1 < g.format.span_groups ? index + 1 : 0;
    }
    if constexpr (!kSegments) break;
    const bool last = segment + 1 == g.segments.count;
    tree.add(segment, sum, last);
    if (last) break;
  }
  for (int b = 0; b < kBlocks; ++b) {
    const int output = (block + b) * kLanes;
    const int n = g.outputs - output < kLanes ? g.outputs - output : kLanes;
    write_block<kRows>(sum + b * kRows, g.out, row, output, n);
  }
}

// Rows [row, g.rows) of kBlocks blocks in tiles of kRows, what is left in one smaller tile.
template <typename Codes, bool kSplit, bool kSegments, int kRows, int kBlocks>
void plane_rows(const PlaneGemv& g, int row, int block) {
  for (; row + kRows <= g.rows; row += kRows) {
    plane_block<Codes, kSplit, kSegments, kRows, kBlocks>(g, row, block);
  }
  if constexpr (kRows > 1) {
    if (row < g.rows) plane_rows<Codes, kSplit, kSegments, kRows - 1, kBlocks>(g, row, block);
  }
}

// All blocks for tiles of at most kRows rows, and of less where there are not as many.
template <typename Codes, bool kSplit, bool kSegments, int kRows>
void plane_blocks(const PlaneGemv& g) {
  if constexpr (kRows > 1) {
    if (g.rows < kRows) return plane_blocks<Codes, kSplit, kSegments, kRows - 1>(g);
  }
  constexpr int kBlocks = kPlaneBlocks<Codes, kRows>;
  const int blocks = (g.outputs + kLanes - 1) / kLanes;
  int block = 0;
  for (; block + kBlocks <= blocks; block += kBlocks) {
    plane_rows<Codes, kSplit, kSegments, kRows, kBlocks>(g, 0, block);
  }
  for (; block < blocks; ++block) plane_rows<Codes, kSplit, kSegments, kRows, 1>(g, 0, block);
}

template <typename Codes, bool kSplit>
void plane_outputs(const PlaneGemv& g) {
  g.segments.count > 1 ? plane_blocks<Codes, kSplit, true, kPlaneRows>(g)
                       : plane_blocks<Codes, kSplit, false, kPlaneRows>(g);
}

// NOTE: where the upper plane is read alone, whatever is below it, activations have one byte; where
// all of a code is read, two. A table's codes have no more than an upper plane.
void plane_gemv(const PlaneGemv& g) {
  if (g.format.values != nullptr) {
    return g.split ? plane_outputs<PlaneCodes<0, true>, true>(g)
                   : plane_outputs<PlaneCodes<0, true>, false>(g);
  }
  if (!g.split) return plane_outputs<PlaneCodes<0, false>, false>(g);
  switch (g.format.lower_bits) {
    case 1:
      return plane_outputs<PlaneCodes<1, false>, true>(g);
    case 2:
      return plane_outputs<PlaneCodes<2, false>, true>(g);
    case 4:
      return plane_outputs<PlaneCodes<4, false>, true>(g);
    default:
      return plane_outputs<PlaneCodes<0, false>, true>(g);
  }
}

}  // namespace
}  // namespace quantspec::cpu
