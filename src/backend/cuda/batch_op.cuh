// How products of many rows are launched. Two or three launches of an op:
//
//   make_*_operands  activations times the norm's weights, as hi + lo (of the weights' type, or
//                    of integers beside codes), in the order in which the matrix units take them;
//                    each segment's sums of squares
//   batch_linear     products on the matrix units of compute capability 9.0: weights are A, from
//                    registers, activations B. What it has of a sum of all segments goes through
//                    what the op does; nodes of the sum over segments go to memory
//   finish_batch     adds those; bias, factor, and what the op does. Queries, keys and values
//                    always have it, as both halves of a head meet there, and gate and up where
//                    a warp does not have both of an output
//
// The order of a row's sum is that of the formats of linear_kernel.cuh (batch_half.cuh,
// batch_planes.cuh, batch_codes.cuh).
#pragma once

#include <algorithm>
#include <iterator>

#include "backend/cuda/batch_finish.cuh"
#include "backend/cuda/batch_products.cuh"
#include "backend/cuda/linear_launch.cuh"

namespace quantspec::cuda {

template <typename... Params, typename... Args>
void launch_batch(OpLaunches& op, void (*kernel)(Params...), dim3 grid, int threads,
                  std::size_t shared_bytes, const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = op.device().stream();
  cudaLaunchAttribute attribute = launch_attribute(op.device(), op.next());
  config.attrs = &attribute;
  config.numAttrs = 1;
  QUANTSPEC_CUDA(cudaLaunchKernelEx(&config, kernel, args...));
}

// What the launches of an op leave to each other: operands, sums of squares, and nodes, if they
// come to memory; and the left sums that products have there.
template <typename Format, int kRows>
struct BatchScratch {
  std::size_t operands, squares, left, nodes;  // bytes

  // in_memory: whose nodes always are.
  BatchScratch(const BatchSharing& sharing, int inputs, int tiles, bool in_memory)
      : operands(divide_up(inputs, Format::kUnit) *
                 std::size_t{BatchShared<Format, kRows>::kOperandBytes}),
        squares(sizeof(float) * kRows * kSegments),
        left(static_cast<std::size_t>(sharing.blocks) *
             left_sums_bytes(kRows, kBlockTiles<Format, kRows>,
                             kSumLevels - Format::kSharedLevels(kRows))),
        nodes(in_memory || sharing.nodes() > 1
                  ? sizeof(float) * kRows * kTileRows * std::size_t(tiles) * sharing.nodes()
                  : 0) {}
  std::size_t bytes() const { return operands + squares + left + nodes; }
};

template <typename Format, int kRows>
BatchSharing share_out_batch(const Device& device, int tiles) {
  return share_out_batch(device.num_sms(), tiles, kBlockTiles<Format, kRows>,
                         Format::kProductTime(kRows));
}

// Of the format's kernels, as much as that takes which takes most: memory that grew with the rows
// of a batch would make every graph anew each time.
template <typename Format, int kIndex = 0>
std::size_t scratch_bytes(const Device& device, int inputs, int tiles, bool in_memory) {
  constexpr int kRows = Format::kKernelRows[kIndex];
  const BatchScratch<Format, kRows> own(share_out_batch<Format, kRows>(device, tiles), inputs,
                                        tiles, in_memory);
  if constexpr (kIndex + 1 < std::size(Format::kKernelRows)) {
    return std::max(own.bytes(),
                    scratch_bytes<Format, kIndex + 1>(device, inputs, tiles, in_memory));
  }
  return own.bytes();
}

// An op of up to kRows rows, args.num_rows.
template <typename Format, int kRows>
class BatchOp {
 public:
  BatchOp(OpLaunches& op, const LinearArgs& args)
      : op_(op),
        args_(args),
        tiles_(count_tiles(args)),
        sharing_(share_out_batch<Format, kRows>(op.device(), tiles_)) {}

  void run() {
    check(args_.op != LinearOp::kPart, "ranks' parts of a sum have no kernel of many rows");
    take_scratch();
    launch_operands();
    const bool split = args_.op == LinearOp::kGateUp && !kHasGateAndUp;
    if (args_.op == LinearOp::kQkv || split || sharing_.nodes() > 1) {
      multiply<BatchEnd::kNodes>();
      return finish();
    }
    switch (args_.op) {
      case LinearOp::kStore:
        return multiply<BatchEnd::kStore>();
      case LinearOp::kAdd:
        return multiply<BatchEnd::kAdd>();
      case LinearOp::kGateUp:
        if constexpr (kHasGateAndUp) multiply<BatchEnd::kGateUp>();
        return;
      case LinearOp::kQkv:
      case LinearOp::kPart:
        break;
    }
  }

 private:
  using Shared = BatchShared<Format, kRows>;
  static_assert(sizeof(Shared) <= 227 << 10 && Shared::kStages >= 2);
  // Whether a warp has both of an output.
  static constexpr bool kHasGateAndUp = Format::kHalvesTiles || Format::kTiles(kRows) == 2;

  static bool halves_tiles(const LinearArgs& args) {
    return Format::kHalvesTiles && args.op == LinearOp::kGateUp;
  }
  static int count_tiles(const LinearArgs& args) {
    if (halves_tiles(args)) return divide_up(args.sources[0].outputs, kTileRows / 2);
    int tiles = 0;
    for (const LinearSource& source : args.sources) tiles += source.tiles;
    return tiles;
  }
  int columns() const { return tiles_ * kTileRows; }

  void take_scratch() {
    // As of all kernels of the format, which scratch_bytes() is.
    const bool in_memory =
        args_.op == LinearOp::kQkv || (args_.op == LinearOp::kGateUp && !Format::kHalvesTiles);
    const BatchScratch<Format, kRows> own(sharing_, args_.cols, tiles_, in_memory);
    operands_ = op_.device().scratch(
        Scratch::kBatch, scratch_bytes<Format>(op_.device(), args_.cols, tiles_, in_memory));
    std::byte* const squares = operands_ + own.operands;
    squares_ = reinterpret_cast<float*>(squares);
    left_ = reinterpret_cast<float*>(squares + own.squares);
    nodes_ = reinterpret_cast<float*>(squares + own.squares + own.left);
  }
  const float* squares() const { return args_.norm.weight != nullptr ? squares_ : nullptr; }

  void launch_operands() {
    const OperandArgs of{.x = args_.x + std::ptrdiff_t{args_.first_row} * args_.x_stride,
                         .x_stride = args_.x_stride,
                         .cols = args_.cols,
                         .num_rows = args_.num_rows,
                         .units = args_.units,
                         .bands = args_.bands,
                         .norm = args_.norm.weight,
                         .operands = operands_,
                         .squares = squares_,
                         .code_value = args_.code_value};
    launch_batch(op_, Format::operand_kernel(), Format::operand_grid(kRows, args_.bands),
                 Format::kOperandThreads, 0, of);
  }

  template <BatchEnd kEnd>
  void multiply() {
    const LinearSource* const sources = args_.sources;
    const bool halves = halves_tiles(args_);
    BatchArgs batch{.stride = args_.stride,
                    .tile_rows = halves ? kTileRows / 2 : kTileRows,
                    .second_half = halves
                                       ? sources[1].data - sources[0].data
                                       : kTileRows / 2 * static_cast<std::ptrdiff_t>(args_.stride),
                    .lower_stride = args_.lower_stride,
                    .all_tiles = tiles_,
                    .alternate = kEnd == BatchEnd::kGateUp && !halves,
                    .units = args_.units,
                    .bands = args_.bands,
                    .cols = args_.cols,
                    .code_step = args_.code_step,
                    .code_value = args_.code_value,
                    .run = sharing_.run,
                    .items = sharing_.items,
                    .operands = operands_,
                    .squares = squares(),
                    .epsilon = args_.norm.epsilon,
                    .num_rows = args_.num_rows,
                    .left = left_,
                    .nodes = nodes_,
                    .bias = {sources[0].bias, sources[1].bias},
                    .out = args_.out + std::ptrdiff_t{args_.first_row} * sources[0].outputs,
                    .outputs = sources[0].outputs};
    for (int i = 0; i < kMaxSources; ++i) {
      batch.data[i] = sources[i].data;
      batch.lower[i] = sources[i].lower;
      batch.tiles[i] = halves ? (i == 0 ? tiles_ : 0) : sources[i].tiles;
    }
    const auto kernel = batch_linear<Format, kRows, kEnd>;
    op_.device().kernels().allow_shared(kernel, Kernels::Prefers::kShared);
    launch_batch(op_, kernel, sharing_.blocks, kBatchThreads, sizeof(Shared), batch);
  }

  void finish() {
    switch (sharing_.nodes()) {
      case 1:
        return finish<1>();
      case 2:
        return finish<2>();
      case 4:
        return finish<4>();
      case 8:
        return finish<8>();
    }
  }
  template <int kNodes>
  void finish() {
    const BatchSums sums{
        .nodes = nodes_,
        .squares = squares(),
        .rows = args_.num_rows,
        .columns = columns(),
        .square_stride = kRows,
        .up_column = Format::kHalvesTiles ? 0 : args_.sources[0].tiles * kTileRows};
    if (args_.op == LinearOp::kQkv) {
      const int heads = columns() / args_.qkv.shape.head_dim;
      const int blocks = divide_up(heads * args_.num_rows, kFinishThreads / 32);
      return launch_batch(op_, finish_batch_qkv<kNodes>, blocks, kFinishThreads, 0, args_, sums,
                          heads);
    }
    const dim3 grid(divide_up(args_.sources[0].outputs, 4 * kFinishThreads), args_.num_rows);
    with_op(args_.op, [&]<int kOp>() {
      constexpr bool kGateUp = kOp == static_cast<int>(LinearOp::kGateUp);
      constexpr bool kPlain =
          kOp == static_cast<int>(LinearOp::kStore) || kOp == static_cast<int>(LinearOp::kAdd);
      if constexpr (kGateUp || (kPlain && kNodes > 1)) {
        launch_batch(op_, finish_batch<kOp, kNodes>, grid, kFinishThreads, 0, args_, sums);
      }
    });
  }

  OpLaunches& op_;
  const LinearArgs& args_;
  int tiles_;
  BatchSharing sharing_;
  // What the launches leave to each other.
  std::byte* operands_ = nullptr;
  float* squares_ = nullptr;
  float* left_ = nullptr;
  float* nodes_ = nullptr;
};

// With the kernel of the fewest rows that suffice, from the format's kIndex-th on.
template <typename Format, int kIndex = 0>
void run_batch_op(OpLaunches& op, const LinearArgs& args) {
  constexpr int kRows = Format::kKernelRows[kIndex];
  if constexpr (kIndex + 1 < std::size(Format::kKernelRows)) {
    if (args.num_rows > kRows) return run_batch_op<Format, kIndex + 1>(op, args);
  }
  BatchOp<Format, kRows>(op, args).run();
}

// The rows of the smallest kernel that takes so many.
template <typename Format>
constexpr int kernel_rows(int rows) {
  return *std::ranges::lower_bound(Format::kKernelRows, rows);
}

// The op's rows [args.first_row, end), in as few launches as there may be, evenly where the format
// has kernels for it: up to some 48 rows a launch takes what reading the weights takes, with more
// it takes longer.
template <typename Format>
void run_batch_rows(OpLaunches& op, const LinearArgs& args, int end) {
  LinearArgs some = args;
  some.units = divide_up(args.cols, Format::kUnit);
  for (; some.first_row < end; some.first_row += some.num_rows) {
    const int rest = end - some.first_row, launches = divide_up(rest, kMostBatchRows<Format>);
    some.num_rows = std::min(rest, kernel_rows<Format>(divide_up(rest, launches)));
    run_batch_op<Format>(op, some);
  }
}

}  // namespace quantspec::cuda
