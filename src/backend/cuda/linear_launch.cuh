// How ops of the kernel of linear_kernel.cuh are launched: with which configuration, and which
// instance of it.
#pragma once

#include <algorithm>
#include <bit>
#include <optional>

#include "backend/cuda/linear_kernel.cuh"
#include "base/error.h"

namespace quantspec::cuda {

// --- sharing out (linear_config.h) ---------------------------------------------------------------

inline LinearMachine machine_of(const Device& device) {
  return {device.capability(), device.num_sms(), static_cast<int>(device.max_shared_bytes()),
          device.tuning()};
}

inline bool heads_are_normed(const LinearArgs& args) {
  return args.op == LinearOp::kQkv &&
         (args.qkv.norms[0].weight != nullptr || args.qkv.norms[1].weight != nullptr);
}

inline LinearShape shape_of(const LinearArgs& args) {
  LinearShape shape{.op = args.op,
                    .num_rows = args.num_rows,
                    .bands = args.bands,
                    .tiles = {},
                    .normed = args.norm.weight != nullptr,
                    .heads_normed = heads_are_normed(args),
                    .head_dim = args.op == LinearOp::kQkv ? args.qkv.shape.head_dim : 0,
                    .segments = args.segments};
  for (int i = 0; i < kMaxSources; ++i) shape.tiles[i] = args.sources[i].tiles;
  return shape;
}

// At most args.num_rows in one launch. None: not one activation row fits.
template <LinearFormat Format>
std::optional<LinearConfig> share_out(const Device& device, const LinearArgs& args) {
  return share_out(machine_of(device), Format::kSizes, shape_of(args));
}
template <LinearFormat Format>
int bands_of_part(const Device& device, const LinearArgs& args) {
  return bands_of_part(machine_of(device), Format::kSizes, shape_of(args));
}

// For the kernel.
inline void set(LinearArgs& args, const LinearConfig& config) {
  for (int i = 0; i < kMaxSources; ++i) args.sources[i].blocks = config.blocks[i];
  args.num_rows = config.num_rows;
  args.qkv.half_tiles = config.half_tiles;
  args.qkv.parts = config.parts;
  args.qkv.head_of = config.head_of;
  args.row_blocks = config.row_blocks;
  args.block_tiles = config.block_tiles;
  args.pair_tiles = config.pair_tiles;
  args.row_warps = config.row_warps;
  args.row_shift = std::countr_zero(static_cast<unsigned>(config.row_warps));
  args.cluster_shift = std::countr_zero(static_cast<unsigned>(config.cluster));
  args.depth = config.depth;
  args.buffers = config.buffers;
  args.places = config.places;
}

// Of so many inputs: whole units.
template <LinearFormat Format>
constexpr int bands_of(int cols) {
  return round_up(divide_up(cols, kBandInputs), Format::kSizes.band_step());
}
// The op over so many bands of the inputs, from a band on.
template <LinearFormat Format>
LinearArgs part_of(const LinearArgs& args, int first_band, int bands) {
  if (bands == args.bands) return args;
  LinearArgs part = args;
  const int first = first_band * kBandInputs, unit = first / Format::kUnit;
  LinearSource& source = part.sources[0];
  part.cols = std::min(bands * kBandInputs, args.cols - first);
  part.units = divide_up(part.cols, Format::kUnit);
  part.bands = bands_of<Format>(part.cols);
  part.x += first;
  source.data += std::ptrdiff_t{unit} * Format::kUnitStep;
  if (source.lower != nullptr) source.lower += std::ptrdiff_t{unit} * Format::kLowerStep;
  if (first > 0) source.bias = nullptr;
  return part;
}

// --- launching -----------------------------------------------------------------------------------

template <LinearFormat Format, int kTiles, int kOp, bool kAlone>
void launch(OpLaunches& op, const LinearArgs& args) {
  constexpr auto kernel = decode_linear<Format, kTiles, kOp, kAlone>;
  Device& device = op.device();
  device.kernels().allow_shared(kernel, Kernels::Prefers::kShared);
  cudaLaunchConfig_t config{};
  config.blockDim = kLinearThreads;
  config.dynamicSmemBytes = args.places.total;
  config.stream = device.stream();
  cudaLaunchAttribute attributes[2];
  attributes[0] = launch_attribute(device, op.next());
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  const int cluster = 1 << args.cluster_shift;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.attrs = attributes;
  config.numAttrs = device.capability() < 90 ? 0 : cluster == 1 ? 1 : 2;
  const int resident = device.kernels().resident_clusters(kernel, config, cluster);
  const int clusters = clusters_of_launch(machine_of(device), Format::kSizes, shape_of(args),
                                          args.row_blocks, cluster, resident);
  config.gridDim = clusters * cluster;
  QUANTSPEC_CUDA(cudaLaunchKernelEx(&config, kernel, args));
}

// Whether there are no clusters, and activations and their norms are as models mostly have them.
inline bool is_alone(const LinearArgs& args) {
  return args.row_warps == 1 && args.x_stride % 4 == 0 &&
         (args.op == LinearOp::kAdd || args.op == LinearOp::kPart || args.norm.weight != nullptr) &&
         !heads_are_normed(args);
}

// Calls f.operator()<kOp>().
template <typename F>
void with_op(LinearOp op, const F& f) {
  switch (op) {
    case LinearOp::kStore:
      return f.template operator()<static_cast<int>(LinearOp::kStore)>();
    case LinearOp::kAdd:
      return f.template operator()<static_cast<int>(LinearOp::kAdd)>();
    case LinearOp::kGateUp:
      return f.template operator()<static_cast<int>(LinearOp::kGateUp)>();
    case LinearOp::kQkv:
      return f.template operator()<static_cast<int>(LinearOp::kQkv)>();
    case LinearOp::kPart:
      return f.template operator()<static_cast<int>(LinearOp::kPart)>();
  }
}

// Formats that models mostly have get kernels of their own for each op, and again for a row or a
// few where is_alone(): small ones, which come into the instruction cache sooner. kPart always has
// its own, so that what ranks need costs others nothing.
template <LinearFormat Format, int kTiles>
void launch_op(OpLaunches& op, const LinearArgs& args) {
  if constexpr (Format::kOfEachOp && (kTiles == 1 || kStreamed<Format>)) {
    if (is_alone(args)) {
      return with_op(args.op, [&]<int kOp>() { launch<Format, kTiles, kOp, true>(op, args); });
    }
  }
  if constexpr (Format::kOfEachOp) {
    with_op(args.op, [&]<int kOp>() { launch<Format, kTiles, kOp, false>(op, args); });
  } else if (args.op == LinearOp::kPart) {
    launch<Format, kTiles, static_cast<int>(LinearOp::kPart), false>(op, args);
  } else {
    launch<Format, kTiles, kAnyOp, false>(op, args);
  }
}

// The op's rows [args.first_row, end), some at a time, with the kernel of kTiles for as many.
template <LinearFormat Format, int... kTiles>
void run_rows(OpLaunches& op, LinearArgs args, int end) {
  constexpr int kMost = std::min(kMaxRows, std::max({Format::max_rows(kTiles)...}));
  for (; args.first_row < end; args.first_row += args.num_rows) {
    args.num_rows = std::min(end - args.first_row, kMost);
    const auto config = share_out<Format>(op.device(), args);
    if (!config) {
      fail(ErrorKind::kUnsupportedModel,
           "a matrix of {} inputs: an activation row does not fit in {} bytes of shared memory",
           args.cols, op.device().max_shared_bytes());
    }
    set(args, *config);
    args.odd_segment = odd_segment(args.bands / Format::kSizes.band_step());
    bool done = false;
    const auto launch_where_enough = [&]<int kCount>() {
      if (done || args.num_rows > Format::max_rows(kCount)) return;
      launch_op<Format, kCount>(op, args);
      done = true;
    };
    (launch_where_enough.template operator()<kTiles>(), ...);
  }
}

// With parts of so many bands.
template <LinearFormat Format, int... kTiles>
void run(OpLaunches& op, LinearArgs args, int part_bands, int end) {
  args.bands = bands_of<Format>(args.cols);
  args.units = divide_up(args.cols, Format::kUnit);
  for (int first = 0; first < args.bands; first += part_bands) {
    run_rows<Format, kTiles...>(op, part_of<Format>(args, first, part_bands), end);
  }
}
template <LinearFormat Format, int... kTiles>
void run(OpLaunches& op, LinearArgs args, int end) {
  args.bands = bands_of<Format>(args.cols);
  run<Format, kTiles...>(op, args, bands_of_part<Format>(op.device(), args), end);
}

// With a format that has no kernels but those, if the rows suit it: a few, in one launch that
// is_alone(), with room for the rings (of two units to a stage: with bulk copies). False: they do
// not.
template <LinearFormat Format>
bool run_alone(OpLaunches& op, LinearArgs args, int end) {
  const int num_rows = end - args.first_row;
  if (Format::kStageUnits == 2 && op.device().capability() < 90) return false;
  if (num_rows > Format::max_rows(1)) return false;
  args.bands = bands_of<Format>(args.cols);
  args.units = divide_up(args.cols, Format::kUnit);
  args.num_rows = num_rows;
  const auto config = share_out<Format>(op.device(), args);
  if (!config || config->num_rows < num_rows) return false;
  set(args, *config);
  args.odd_segment = odd_segment(args.bands / Format::kSizes.band_step());
  if (!is_alone(args)) return false;
  with_op(args.op, [&]<int kOp>() { launch<Format, 1, kOp, true>(op, args); });
  return true;
}

}  // namespace quantspec::cuda
