// How the work of a product with weights is shared out: which rows and tiles a block of threads
// takes, and what lies where in its shared memory. Pure functions of shapes, the format and the
// GPU. They decide how fast a product is, never its bits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "backend/cuda/linear_layout.h"
#include "backend/cuda/tuning.h"
#include "backend/params/segments.h"

namespace quantspec::cuda {

// Every sum over inputs is cut into so many segments (segments.h), each summed in order; the
// segments are added as a balanced binary tree. However work is shared out, the bits of a row are
// the same: the sum of a half, a quarter or an eighth of the segments is a number of its own in the
// tree. Of several ranks each has such a part of the inputs, and fewer segments.
inline constexpr int kSegments = kMostSegments;
inline constexpr int kLinearWarps = 8;
inline constexpr int kLinearThreads = 32 * kLinearWarps;
inline constexpr int kMaxSources = 3;
inline constexpr int kMaxRows = 17;      // activation rows of a launch of this kernel
inline constexpr int kBandInputs = 128;  // that a warp prepares at a time

// kPart: sums of a rank's segments alone are stored, to which other ranks' are added.
enum class LinearOp { kStore, kAdd, kGateUp, kQkv, kPart };

// --- what follows from a format ------------------------------------------------------------------

// The sizes of a format (linear_inputs.cuh), in bytes where nothing else is said.
struct LinearSizes {
  bool planes;      // whether it reads planes
  int unit;         // inputs
  int together;     // tiles that a warp multiplies with what it reads of activations, 1 or 2
  int stage_units;  // units of a stage of a warp's ring, 1, or 2 of bulk copies
  int stage;        // of a stage: such units of each of the tiles
  int streamed;     // of a stage, for each activation row; 0: activations are prepared
  // Where they are prepared:
  int columns;      // of B that an activation row takes
  int input;        // of an activation in one column, in shared memory
  int padding;      // that columns are longer than they need to be, so that banks differ
  int band_groups;  // groups of kBandInputs of a row
  int group;        // of what is kept beside a group's activations (of codes: a span's)
  // Activation rows up to which matrices of a block for each multiprocessor have clusters of two.
  int pair_rows = 0;
  // Bands of activations for a warp up to which larger matrices have no clusters.
  int lone_bands = 16;

  // Whether a stage of planes has 256 inputs of each tile, twice what it has elsewhere.
  constexpr bool large_stages() const { return planes && unit * stage_units == 2 * kBandInputs; }
  // Segments of inputs are whole units, hence so many bands or a multiple.
  constexpr int band_step() const { return unit > kBandInputs ? unit / kBandInputs : 1; }
};

constexpr LinearSizes plane_sizes(bool both, int group, int together, int stage_units) {
  const int unit_bytes = upper_unit_bytes(group) + (both ? kLowerUnitBytes : 0);
  return {.planes = true,
          .unit = kPlaneUnit,
          .together = together,
          .stage_units = stage_units,
          .stage = together * stage_units * unit_bytes,
          .streamed = 0,
          .columns = 2,
          .input = 1,
          .padding = 64,
          .band_groups = kBandInputs / group,
          .group = 16,
          .pair_rows = together == 1 ? 12
                       : both        ? 6
                                     : 4,
          .lone_bands = both ? 32 : 20};
}
// What a pass reads of planes of codes (linear_coded.cuh): of each code the upper four bits and
// `lower` below, 0, 1, 2 or 4.
struct CodedKind {
  int lower;
  int group;  // 16 or 32
  bool two_levels;
  bool has_offset;
  bool table;  // of the values of 4-bit codes
  bool operator==(const CodedKind&) const = default;

  constexpr int span_groups() const { return kSpanInputs / group; }
  // What is kept beside a span's activations: sums of its groups, then their step; a power of two.
  constexpr int record_floats() const { return 2 * span_groups(); }
  constexpr int unit() const { return two_levels ? kMostUnit : kPlaneUnit; }
  constexpr PlaneLayout unit_layout() const {
    return {WeightFormat{.bits = 4 + lower,
                         .group = group,
                         .block = two_levels ? kMostUnit : group,
                         .has_offset = has_offset},
            unit()};
  }
};
constexpr LinearSizes coded_sizes(const CodedKind& kind, int together) {
  const PlaneLayout layout = kind.unit_layout();
  return {.planes = true,
          .unit = kind.unit(),
          .together = together,
          .stage_units = 1,
          .stage = together * (layout.upper_bytes() + layout.lower_bytes()),
          .streamed = 0,
          .columns = 2,
          .input = 1,
          .padding = 64,
          .band_groups = kBandInputs / kSpanInputs,
          .group = 4 * kind.record_floats(),
          .pair_rows = kMaxRows};
}
// Of matrices of 16 bits, beside which activations are streamed as fp32.
inline constexpr LinearSizes kHalfSizes{.planes = false,
                                        .unit = 64,
                                        .together = 2,
                                        .stage_units = 1,
                                        .stage = 2 * kTileRows * 64 * 2,
                                        .streamed = 64 * 4,
                                        .columns = 0,
                                        .input = 0,
                                        .padding = 0,
                                        .band_groups = 0,
                                        .group = 0};
inline constexpr LinearSizes kFp32Sizes{.planes = false,
                                        .unit = 32,
                                        .together = 2,
                                        .stage_units = 1,
                                        .stage = 2 * kTileRows * 32 * 4,
                                        .streamed = 0,
                                        .columns = 1,
                                        .input = 4,
                                        .padding = 128,
                                        .band_groups = 0,
                                        .group = 0};

// Bytes of a stage of a ring: weights, then streamed activations, then the norm's weights.
constexpr int stage_bytes(int weights, int streamed, int num_rows, bool normed) {
  return weights + (num_rows + normed) * streamed;
}

// Stages of its ring that a warp asks for before the activations are there, of formats that prepare
// them. With all of a ring ahead of them their loads come late, and the kernel ahead gets less of
// the memory. bulk: copies are.
// NOTE: measured with two units to a stage, in graphs of layers (drivers, not in the tree). Of
// queries, keys and values one more costs 3% of a layer's products, one less of gate and up 4%; of
// long rows, whose preparation takes longer, one more saves up to 2%, of longer ones yet, which
// have larger rings, three more 2%: a layer of 8B takes 44.0 us with 1, 43.4 with 2, 43.1 with 4
// of 5.
constexpr int early_stages(bool bulk, bool large_stages, LinearOp op, int bands, int depth) {
  if (!bulk) return depth / 2;
  if (!large_stages) return 3;
  const bool large = op == LinearOp::kGateUp || op == LinearOp::kStore;
  if (bands > 12 * kSegments && depth > 4) return 4;
  return large || bands > 8 * kSegments ? 2 : 1;
}

// --- sharing out ---------------------------------------------------------------------------------

struct LinearMachine {
  int capability;        // 90: 9.0
  int num_sms;           // multiprocessors
  int max_shared_bytes;  // of a block
  Tuning tuning;
};

// Where a segment of all kSegments begins, as segment_begin() has it, in few instructions: between
// units at equal distances, but for one of them, which begins a unit earlier. odd: that one.
constexpr int odd_segment(int units) {
  const int rest = units % kSegments;
  return rest == 3 || rest == 5 ? rest : -1;
}
constexpr int segment_begin_of_all(int bands, int band_step, int odd, int segment) {
  return (segment * (bands / band_step) / kSegments - (segment == odd)) * band_step;
}

struct LinearShape {
  LinearOp op;
  int num_rows;                        // of activations
  int bands;                           // of kBandInputs, of a row; a multiple of band_step()
  std::array<int, kMaxSources> tiles;  // of each matrix, 0 where there is none
  bool normed;                         // whether activations are
  bool heads_normed;                   // kQkv: whether queries or keys are
  int head_dim;                        // kQkv
  int segments = kSegments;            // of a sum; kPart: fewer
};

// Where a block keeps what in its shared memory, in bytes; the rings come first.
struct LinearPlaces {
  int barriers;
  int values;
  int stride;  // as in Inputs
  int group_stride;
  int groups;
  int squares;
  int partials;
  int total;
  bool operator==(const LinearPlaces&) const = default;
};

struct LinearConfig {
  int num_rows;                         // of a launch, from 1 to those of the shape
  std::array<int, kMaxSources> blocks;  // row blocks of each matrix (of kGateUp: of both, at first)
  int row_blocks;                       // of all
  int block_tiles;                      // tiles of a row block
  int pair_tiles;                       // from a tile to that which is taken with it
  int row_warps;                        // pairs of tiles that a block of threads takes at a time
  int cluster;                          // blocks that have all segments between them
  int half_tiles;                       // kQkv: as in QkvArgs, and the next
  int parts;
  std::uint32_t head_of;
  int depth;    // stages of a warp's ring
  int buffers;  // of sums: for 2 row blocks, or 1 where there is no room
  LinearPlaces places;
  bool operator==(const LinearConfig&) const = default;
};

// None: not one activation row fits in a block's shared memory.
std::optional<LinearConfig> share_out(const LinearMachine& machine, const LinearSizes& format,
                                      const LinearShape& shape);

// How many bands of the inputs one launch takes: all where clusters share them or where they are
// streamed. Otherwise (before 9.0) a long activation row may not fit in a block's shared memory;
// what is added to something is then added part by part, and the parts are the same for every
// number of rows.
int bands_of_part(const LinearMachine& machine, const LinearSizes& format,
                  const LinearShape& shape);

// The clusters (or blocks, where there are none) of a launch, of a kernel of which the GPU holds
// `resident` at a time.
int clusters_of_launch(const LinearMachine& machine, const LinearSizes& format,
                       const LinearShape& shape, int row_blocks, int cluster, int resident);

}  // namespace quantspec::cuda
