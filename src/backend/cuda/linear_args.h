// What the kernel of linear_kernel.cuh works on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device.h"
#include "backend/cuda/linear_config.h"
#include "backend/params/linear.h"

namespace quantspec::cuda {

// One matrix of an op.
struct LinearSource {
  const std::byte* data = nullptr;   // rows of the full matrix, or the upper plane
  const std::byte* lower = nullptr;  // the lower plane, where it is read
  const float* bias = nullptr;
  int outputs = 0;
  int tiles = 0;
  int blocks = 0;  // row blocks of this source (of kGateUp: of both together, at the first)
};

// The part of a QkvParams that the last step needs.
struct QkvArgs {
  KvShape shape;
  // Tiles of half a head that a row block has: it then has those of the other half too. 0: row
  // blocks are whole heads, one after the other.
  int half_tiles;
  int parts;  // row blocks of a head
  // 2^16 / parts, rounded up: row block b is of head b * head_of / 2^16 (at least below 13107).
  std::uint32_t head_of;
  Norm norms[2];  // of queries and keys
  const float* cos;
  const float* sin;
  SequenceTables sequences;  // where K and V go
};

struct LinearArgs {
  LinearOp op;
  LinearSource sources[kMaxSources];
  int cols;
  int segments = kSegments;  // of a sum; kPart: fewer
  int x_stride;
  // Bytes from row to row of a full matrix, from tile to tile of an upper and a lower plane.
  std::size_t stride;
  std::size_t lower_stride;
  int units;        // of cols, Format::kUnit each
  int bands;        // of cols, 128 each
  int odd_segment;  // of these
  int group;        // of planes
  // Of codes (linear_coded.cuh): what one stands for is code_step (c + code_value), or code_step
  // times a value of a table.
  float code_step, code_value;
  std::uint32_t code_table[4];
  const float* x;  // [num_rows, cols], rows x_stride apart
  int first_row;   // of the rows of the op
  int num_rows;
  Norm norm;
  float* out;  // [num_rows, outputs of the first source] (of kQkv: queries)
  QkvArgs qkv;
  // How the work is shared out, a LinearConfig; sources[].blocks too.
  int row_blocks;
  int block_tiles;    // tiles of a row block
  int pair_tiles;     // from a tile to that which is taken with it
  int row_warps;      // pairs of tiles that a block of threads takes at a time
  int row_shift;      // log2 of it
  int cluster_shift;  // log2 of the blocks that have all segments between them
  int depth;          // stages of a warp's ring
  int buffers;        // of sums: for 2 row blocks, or 1 where there is no room
  LinearPlaces places;
};

}  // namespace quantspec::cuda
