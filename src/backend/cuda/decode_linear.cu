#include <algorithm>
#include <bit>
#include <optional>

#include "backend/cuda/linear_full.cuh"
#include "backend/cuda/linear_kernel.cuh"
#include "backend/cuda/linear_planes.cuh"
#include "backend/cuda/products.h"
#include "backend/params/pass.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// Activation rows of one launch; an op with more of them reads the weights again.
constexpr int kMaxRows = 17;
// --- sharing out (linear_config.h) ---------------------------------------------------------------

LinearMachine machine_of(const Device& device) {
  return {device.capability(), device.num_sms(), static_cast<int>(device.max_shared_bytes())};
}

bool heads_are_normed(const LinearArgs& args) {
  return args.op == LinearOp::kQkv &&
         (args.qkv.norms[0].weight != nullptr || args.qkv.norms[1].weight != nullptr);
}

LinearShape shape_of(const LinearArgs& args) {
  LinearShape shape{.op = args.op,
                    .num_rows = args.num_rows,
                    .bands = args.bands,
                    .tiles = {},
                    .normed = args.norm.weight != nullptr,
                    .heads_normed = heads_are_normed(args),
                    .head_dim = args.op == LinearOp::kQkv ? args.qkv.shape.head_dim : 0};
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
void set(LinearArgs& args, const LinearConfig& config) {
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
  args.depth = config.depth;
  args.buffers = config.buffers;
  args.places = config.places;
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
  part.bands = divide_up(part.cols, kBandInputs);
  part.x += first;
  source.data += std::ptrdiff_t{unit} * Format::kUnitStep;
  if (source.lower != nullptr) source.lower += std::ptrdiff_t{unit} * kLowerUnitBytes;
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
  attributes[0] = launch_attribute(op.next());
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(args.row_warps), 1, 1};
  config.attrs = attributes;
  config.numAttrs = device.capability() < 90 ? 0 : args.row_warps == 1 ? 1 : 2;
  const int resident = device.kernels().resident_clusters(kernel, config, args.row_warps);
  const int clusters = clusters_of_launch(machine_of(device), Format::kSizes, shape_of(args),
                                          args.row_blocks, args.row_warps, resident);
  config.gridDim = clusters * args.row_warps;
  QUANTSPEC_CUDA(cudaLaunchKernelEx(&config, kernel, args));
}

// Whether there are no clusters, and activations and their norms are as models mostly have them.
bool is_alone(const LinearArgs& args) {
  return args.row_warps == 1 && args.x_stride % 4 == 0 &&
         (args.op == LinearOp::kAdd || args.norm.weight != nullptr) && !heads_are_normed(args);
}

// Formats that models mostly have get kernels of their own for each op, and again for a row or a
// few where is_alone(): small ones, which come into the instruction cache sooner. Of those with two
// units to a stage there are no others.
template <LinearFormat Format, int kTiles, int kOp>
void launch_op(OpLaunches& op, const LinearArgs& args) {
  if constexpr (Format::kOfEachOp && (kTiles == 1 || kStreamed<Format>)) {
    if (Format::kStageUnits == 2 || is_alone(args)) {
      return launch<Format, kTiles, kOp, true>(op, args);
    }
  }
  if constexpr (Format::kStageUnits == 1) launch<Format, kTiles, kOp, false>(op, args);
}
template <LinearFormat Format, int kTiles>
void launch_op(OpLaunches& op, const LinearArgs& args) {
  if constexpr (Format::kOfEachOp) {
    switch (args.op) {
      case LinearOp::kStore:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kStore)>(op, args);
      case LinearOp::kAdd:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kAdd)>(op, args);
      case LinearOp::kGateUp:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kGateUp)>(op, args);
      case LinearOp::kQkv:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kQkv)>(op, args);
    }
  } else {
    launch_op<Format, kTiles, kAnyOp>(op, args);
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
  args.units = divide_up(args.cols, Format::kUnit);
  for (int first = 0; first < args.bands; first += part_bands) {
    run_rows<Format, kTiles...>(op, part_of<Format>(args, first, part_bands), end);
  }
}
template <LinearFormat Format, int... kTiles>
void run(OpLaunches& op, const LinearArgs& args, int end) {
  run<Format, kTiles...>(op, args, bands_of_part<Format>(op.device(), args), end);
}

// With a format of two units to a stage, if the rows suit it: a few, in one launch that is_alone(),
// with bulk copies and room for large rings. False: they do not.
template <LinearFormat Format>
bool run_alone(OpLaunches& op, LinearArgs args, int end) {
  const int num_rows = end - args.first_row;
  if (op.device().capability() < 90 || num_rows > Format::max_rows(1)) return false;
  args.units = divide_up(args.cols, Format::kUnit);
  args.num_rows = num_rows;
  const auto config = share_out<Format>(op.device(), args);
  if (!config || config->num_rows < num_rows) return false;
  set(args, *config);
  if (!is_alone(args)) return false;
  launch_op<Format, 1>(op, args);
  return true;
}

// Fills in what the matrices of an op have in common, and runs its rows [args.first_row, end).
void run(OpLaunches& op, LinearArgs args, WeightRead read, const Linear& first, int end) {
  args.cols = args.x_stride = first.inputs();
  args.bands = divide_up(args.cols, kBandInputs);
  const WeightFormat& format = matrix_of(first, read).format;
  args.group = format.group;
  if (format.dense()) {
    args.stride = padded_cols(args.cols) * size_of(format.dtype);
    switch (format.dtype) {
      case DType::kF32:
        return run<Fp32Format, 4>(op, args, end);
      case DType::kF16:
        return run<FullFormat<__half>, 1, 2, 3>(op, args, end);
      case DType::kBF16:
        return run<FullFormat<__nv_bfloat16>, 1, 2, 3>(op, args, end);
    }
  }
  const std::size_t units = plane_units(args.cols);
  args.stride = units * upper_unit_bytes(args.group);
  args.lower_stride = units * kLowerUnitBytes;
  const auto run_planes = [&]<bool kBoth, int kGroup>() {
    if constexpr (!kBoth && kGroup == 128) {
      if (run_alone<PlaneFormat<kBoth, kGroup, 2, 2>>(op, args, end)) return;
    }
    using TwoTiles = PlaneFormat<kBoth, kGroup, 2>;
    const int part_bands = bands_of_part<TwoTiles>(op.device(), args);
    if (end - args.first_row <= TwoTiles::max_rows(2)) {
      run<TwoTiles, 1, 2>(op, args, part_bands, end);
    } else {  // sums of two tiles would not fit in registers
      run<PlaneFormat<kBoth, kGroup, 1>, 5>(op, args, part_bands, end);
    }
  };
  const bool upper = read == WeightRead::kUpper;
  if (args.group == 64) {
    upper ? run_planes.template operator()<false, 64>()
          : run_planes.template operator()<true, 64>();
  } else {
    upper ? run_planes.template operator()<false, 128>()
          : run_planes.template operator()<true, 128>();
  }
}

LinearSource source_of(const Linear& linear, WeightRead read) {
  check(readable(linear, read), "a pass reads weight planes that were not made");
  const Matrix& matrix = matrix_of(linear, read);
  return {.data = static_cast<const std::byte*>(matrix.data),
          .lower = static_cast<const std::byte*>(matrix.lower),
          .bias = linear.bias,
          .outputs = linear.outputs(),
          .tiles = row_tiles(linear.outputs())};
}

// Whether matrices can be read by one launch.
bool alike(const Linear& a, const Linear& b, WeightRead read) {
  return a.inputs() == b.inputs() && matrix_of(a, read).format == matrix_of(b, read).format;
}

}  // namespace

void tile_qkv(Device& device, const QkvParams& params) {
  const KvShape& shape = params.shape;
  const Linear& first = params.q_out != nullptr ? *params.q : *params.k;
  OpLaunches op(device, params.order);
  LinearArgs args{.op = LinearOp::kQkv, .x = params.x, .norm = params.norm, .out = params.q_out};
  if (params.q_out != nullptr) args.sources[0] = source_of(*params.q, params.weights);
  if (!params.sequences.empty()) {
    check(alike(first, *params.k, params.weights) && alike(first, *params.v, params.weights),
          "Q, K and V have inputs, element types and groups in common");
    args.sources[1] = source_of(*params.k, params.weights);
    args.sources[2] = source_of(*params.v, params.weights);
  }
  args.qkv.shape = shape;
  args.qkv.norms[0] = params.q_norm;
  args.qkv.norms[1] = params.k_norm;
  args.qkv.cos = params.cos;
  args.qkv.sin = params.sin;
  if (!params.sequences.empty()) {
    args.qkv.sequences = op.tables(params.sequences, params.num_rows, shape.num_kv_heads);
  }
  run(op, args, params.weights, first, params.num_rows);
}

void tile_add_linear(Device& device, const AddLinearParams& params) {
  const Linear& linear = *params.linear;
  OpLaunches op(device, params.order);
  run(op,
      {.op = LinearOp::kAdd,
       .sources = {source_of(linear, params.weights)},
       .x = params.in,
       .norm = {},
       .out = params.x},
      params.weights, linear, params.num_rows);
}

void tile_gate_up(Device& device, const GateUpParams& params) {
  const Linear &gate = *params.gate, &up = *params.up;
  check(gate.outputs() == up.outputs() && alike(gate, up, params.weights),
        "gate and up have shape, element type and groups in common");
  OpLaunches op(device, params.order);
  run(op,
      {.op = LinearOp::kGateUp,
       .sources = {source_of(gate, params.weights), source_of(up, params.weights)},
       .x = params.x,
       .norm = params.norm,
       .out = params.out},
      params.weights, gate, params.num_rows);
}

void tile_head(Device& device, const HeadParams& params) {
  const Linear& linear = *params.head;
  OpLaunches op(device, params.order);
  run(op,
      {.op = LinearOp::kStore,
       .sources = {source_of(linear, params.weights)},
       .x = params.x,
       .norm = params.norm,
       .out = params.logits},
      params.weights, linear, params.num_rows);
}

}  // namespace quantspec::cuda
