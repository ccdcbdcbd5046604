// What formats of codes have in common (batch_planes.cuh, batch_codes.cuh) for the kernel of
// batch_products.cuh: activations are integers of 16 bits, hi and lo, with a power of two for each
// row and band.
#pragma once

#include <cfloat>

#include "backend/cuda/batch_items.cuh"
#include "backend/cuda/linear_inputs.cuh"

namespace quantspec::cuda {

// Where the operands of a band of inputs have a lane's four, 4 lane ..: of which of its steps of
// products, half of the step's places, and word of a place.
struct OperandWord {
  int step, half, t;
};

inline constexpr int kByteOperandWarps = 4;  // rows of a block, gridDim.x of these
inline constexpr int kByteOperandBands = 4;  // whose loads are under way together

// Operands, and behind those of a unit Format's records of its bands. A warp has some bands of a
// segment of a row; of blockIdx.z = 0 also its squares, in the order in which the kernel of a few
// rows adds them. NOTE: the kernel after it reads nothing early but weights, so it may come at
// once.
template <typename Format>
__global__ void __launch_bounds__(32 * kByteOperandWarps)
    make_byte_operands(const __grid_constant__ OperandArgs args) {
  constexpr int kBands = Format::kUnit / kBandInputs;
  const int rows = kByteOperandWarps * gridDim.x, lane = threadIdx.x % 32;
  const int row = kByteOperandWarps * blockIdx.x + warp_index(), segment = blockIdx.y;
  const int first = kBands * first_unit<Format::kUnit>(args.bands, args.units, segment);
  const int end = kBands * first_unit<Format::kUnit>(args.bands, args.units, segment + 1);
  const bool there = row < args.num_rows, aligned = args.x_stride % 4 == 0;
  const float* const from = args.x + static_cast<std::ptrdiff_t>(row) * args.x_stride;
  const int operands = operand_bytes(rows, Format::kSteps), records = Format::kRecordBytes(rows);
  const OperandWord word = Format::word_of(lane);
  std::byte* const to = args.operands + (word.step * rows / 8 + row / 8) * kGroupBytes +
                        word.half * kMatrixBytes + row % 8 * 16 + word.t * 4;
  let_next_kernel_start();
  wait_for_previous_kernels();
  constexpr int kBatch = kByteOperandBands;
  const bool squared = args.norm != nullptr && blockIdx.z == 0;
  float square = 0.0f;
  for (int next = first, turn = 0; next < end; next += kBatch, ++turn) {
    const bool own = turn % gridDim.z == blockIdx.z;
    if (!own && !squared) continue;
    float4 x[kBatch] = {}, weights[kBatch];
    const int input = next * kBandInputs + 4 * lane, stop = min(end * kBandInputs, args.cols);
    if (there) load_inputs(from, input, stop, aligned, x);
    if (args.norm != nullptr && own) load_inputs(args.norm, input, stop, aligned, weights);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (next + i >= end) break;
      const int unit = (next + i) / kBands, band = (next + i) % kBands;
      float4 v = x[i];
      if (args.norm != nullptr) {
        square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, square))));
        if (!own) continue;
        const float4 w = weights[i];
        v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      }
      const float max = greatest<32>(v);
      const PowerOfTwo power = activation_power(max);
      const ActivationBytes bytes = activation_bytes(v, power.scale);
      const std::ptrdiff_t of_unit = static_cast<std::ptrdiff_t>(unit) * (operands + records);
      std::byte* const at = to + of_unit + band * (operands / kBands);
      *reinterpret_cast<std::uint32_t*>(at) = bytes.hi;
      *reinterpret_cast<std::uint32_t*>(at + 2 * kMatrixBytes) = bytes.lo;
      auto* const of_band =
          reinterpret_cast<float*>(args.operands + of_unit + operands + band * (records / kBands));
      const float step = max <= FLT_MAX ? power.inverse : NAN;
      Format::put_record(of_band, rows, row, step, bytes.sum, args.code_value);
    }
  }
  square = warp_sum(square);
  if (squared && lane == 0) args.squares[segment * rows + row] = square;
}

// What those formats have in common, for the kernels above and of batch_products.cuh.
template <typename Format>
struct ByteOperands {
  static constexpr int kSharedLevels(int) { return kSumLevels; }
  static constexpr int kProductTime(int) { return 5; }
  static constexpr int kParts(int) { return 1; }  // of a unit, a stage each
  // Of weights and operands, which come together.
  static constexpr int kStages(int rows) {
    const int tiles = kBatchWarps * Format::kTiles(rows);
    return (kBatchRingBytes - left_sums_bytes(rows, tiles, kSumLevels)) /
           (tiles * Format::kWeightBytes + operand_bytes(rows, Format::kSteps) +
            Format::kRecordBytes(rows));
  }
  static constexpr int kDepth(int rows) { return kStages(rows); }
  static constexpr bool kHalvesTiles = false;
  static constexpr bool kOwnRings = false;

  static auto operand_kernel() { return make_byte_operands<Format>; }
  static constexpr int kOperandThreads = 32 * kByteOperandWarps;
  static dim3 operand_grid(int rows, int bands) {
    return dim3(rows / kByteOperandWarps, kSegments,
                divide_up(divide_up(bands, kSegments), kByteOperandBands));
  }
};

}  // namespace quantspec::cuda
