// What kernels of products of many rows (batch_op.cuh) work on, whatever the format of weights.
#pragma once

#include <iterator>

#include "backend/cuda/batch_linear.h"
#include "backend/cuda/linear_finish.cuh"
#include "backend/cuda/wgmma.cuh"

namespace quantspec::cuda {

inline constexpr int kBatchWarps = 8;  // that multiply
// Of a block's shared memory, what it multiplies and left sums; barriers and factors have the rest.
inline constexpr int kBatchRingBytes = 224 << 10;
// Of a row block; each warp has as many.
template <typename Format, int kRows>
inline constexpr int kBlockTiles = kBatchWarps* Format::kTiles(kRows);

// Of a launch; of more, weights are read again.
template <typename Format>
inline constexpr int kMostBatchRows = *std::rbegin(Format::kKernelRows);

// --- operands ------------------------------------------------------------------------------------

// Activations of a unit are steps of products: [step][8 rows][hi, lo][half of the step's
// places][row of 8][16 bytes], so that 8 rows and 16 bytes of places are a core matrix (wgmma.cuh).
inline constexpr int kMatrixBytes = 128;
inline constexpr int kGroupBytes = 2 * 2 * kMatrixBytes;  // of 8 activation rows and a step
constexpr int operand_bytes(int rows, int steps) { return rows / 8 * kGroupBytes * steps; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Step i of them for wgmma.
template <int kRows>
__device__ __forceinline__ std::uint64_t operand_of_step(std::uint32_t operands, int i) {
  return plain_operand(operands, kMatrixBytes, kGroupBytes / 2) +
         i * (kRows / 8 * kGroupBytes / 16);
}
#endif

struct OperandArgs {
  const float* x;  // of the first row
  int x_stride, cols, num_rows;
  int units, bands;
  const float* norm;  // weights or null
  std::byte* operands;
  float* squares;    // [kSegments, rows], sums of a segment
  float code_value;  // of codes, as LinearArgs has it
};

// --- sums of segments ---------------------------------------------------------------------------

inline constexpr int kSumLevels = 3;  // of their tree
static_assert(1 << kSumLevels == kSegments);
// Of a block: left operands of so many levels of the tree.
constexpr int left_sums_bytes(int rows, int tiles, int levels) {
  return levels * rows * kTileRows * tiles * static_cast<int>(sizeof(float));
}

// --- items ---------------------------------------------------------------------------------------

// What becomes of an item's sums: nodes of a sum in memory, or what the op does.
enum class BatchEnd { kNodes, kStore, kAdd, kGateUp };

// A tile is 16 outputs of a matrix; of gate and up of elements, 8 of each.
struct BatchArgs {
  const std::byte* data[kMaxSources];
  int tiles[kMaxSources];
  std::size_t stride;          // bytes from row to row of a matrix, of planes from tile to tile
  int tile_rows;               // of a matrix
  std::ptrdiff_t second_half;  // bytes from row 0 of a tile to row 8
  const std::byte* lower[kMaxSources];  // planes, where they are read
  std::size_t lower_stride;
  int all_tiles;
  bool alternate;  // tiles of gate and of up, of the same outputs, where warps finish both
  int units, bands, cols;
  float code_step, code_value;  // of codes, as LinearArgs has them
  int run, items;               // BatchSharing
  const std::byte* operands;
  const float* squares;  // [kSegments, kRows]; null: no norm
  float epsilon;
  int num_rows;
  float* left;   // of each block, left operands of levels that have no shared memory
  float* nodes;  // [BatchSharing::nodes(), num_rows, 16 * all_tiles]
  // What the op does, where sums are whole:
  const float* bias[2];
  float* out;  // [num_rows, outputs]
  int outputs;
};

// First unit of so many inputs of a segment; of segment kSegments: where the last one ends.
template <int kUnit>
__device__ __forceinline__ int first_unit(int bands, int units, int segment) {
  constexpr int kStep = kUnit > kBandInputs ? kUnit / kBandInputs : 1;
  return min(segment_begin(bands, kStep, kSegments, segment) * kBandInputs / kUnit, units);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kUnit>
struct BatchItem {
  int row_block;
  int node;     // of the row block
  int segment;  // the first
  int unit, end_unit;

  __device__ BatchItem(const BatchArgs& args, int i) {
    const int nodes = kSegments / args.run;
    row_block = i / nodes;
    node = i % nodes;
    segment = node * args.run;
    unit = first_unit<kUnit>(args.bands, args.units, segment);
    end_unit = first_unit<kUnit>(args.bands, args.units, segment + args.run);
  }
};

// A stage of a ring, and the parity of its use.
template <int kStages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Where a tile of an op is, beyond the last the last.
struct BatchTile {
  int source, tile;

  __device__ BatchTile(const BatchArgs& args, int index)
      : source(0), tile(min(index, args.all_tiles - 1)) {
    if (args.alternate) {
      source = tile % 2;
      tile /= 2;
      return;
    }
    while (tile >= args.tiles[source]) tile -= args.tiles[source++];
  }
};

#endif

}  // namespace quantspec::cuda
