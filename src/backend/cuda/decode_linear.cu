#include <algorithm>
#include <bit>
#include <numeric>

#include "backend/cuda/linear_full.cuh"
#include "backend/cuda/linear_kernel.cuh"
#include "backend/cuda/linear_planes.cuh"
#include "backend/cuda/ops.h"
#include "backend/params/pass.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// Activation rows of one launch; an op with more of them reads the weights again.
constexpr int kMaxRows = 17;
// Stages of a ring, the best first.
constexpr int kDepths[] = {8, 6, 5, 4, 3, 2};

// --- sharing out ---------------------------------------------------------------------------------

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

int total_tiles(const LinearArgs& args) {
  int tiles = 0;
  for (const LinearSource& source : args.sources) tiles += source.tiles;
  return tiles;
}

bool wants_whole_heads(const LinearArgs& args) {
  return args.op == LinearOp::kQkv &&
         (args.qkv.norms[0].weight != nullptr || args.qkv.norms[1].weight != nullptr);
}

// Row blocks for blocks of `row_warps`: their tiles and number.
void set_row_blocks(LinearArgs& args, int row_warps) {
  args.row_warps = row_warps;
  args.row_shift = std::countr_zero(static_cast<unsigned>(row_warps));
  args.block_tiles = 2 * row_warps;
  if (args.op == LinearOp::kQkv) {
    const int dim = args.qkv.shape.head_dim, head_tiles = dim / kTileRows;
    args.qkv.half_tiles = 0;
    if (!wants_whole_heads(args) && dim % 32 == 0 && 2 * row_warps < head_tiles) {
      args.qkv.half_tiles = std::gcd(head_tiles / 2, row_warps);
      args.block_tiles = 2 * args.qkv.half_tiles;
    } else {  // whole heads, an even number of tiles
      const int heads = std::max(1, 2 * row_warps / head_tiles);
      args.block_tiles = head_tiles * (head_tiles % 2 == 0 ? heads : round_up(heads, 2));
    }
  }
  args.pair_tiles = args.op == LinearOp::kGateUp ? 0 : args.block_tiles / 2;
  args.qkv.parts = 1;
  if (args.qkv.half_tiles != 0) {
    args.pair_tiles = args.qkv.shape.head_dim / 32;
    args.qkv.parts = args.pair_tiles / args.qkv.half_tiles;
  }
  args.qkv.head_of = divide_up(1 << 16, args.qkv.parts);
  const int sources = args.op == LinearOp::kQkv ? kMaxSources : 1;
  const int own_tiles = args.op == LinearOp::kGateUp ? args.block_tiles / 2 : args.block_tiles;
  args.row_blocks = 0;
  for (int i = 0; i < sources; ++i) {
    LinearSource& source = args.sources[i];
    source.blocks = divide_up(source.tiles, own_tiles);
    args.row_blocks += source.blocks;
  }
}

template <typename Format>
LinearPlaces places_of(const LinearArgs& args) {
  const int slices = kSlices / args.row_warps, rows = args.num_rows;
  int chunks = 0;  // of a block
  for (int slice = 0; slice < kSlices; slice += slices) {
    chunks =
        std::max(chunks, (slice + slices) * args.chunks / kSlices - slice * args.chunks / kSlices);
  }
  LinearPlaces places{};
  int end = kLinearWarps * args.depth * stage_bytes<Format>(args);
  const auto take = [&](int bytes) {
    const int begin = end;
    end += round_up(bytes, 16);
    return begin;
  };
  places.barriers = take(Format::kPlanes ? kLinearWarps * args.depth * 8 : 0);
  if constexpr (!kStreamed<Format>) {
    places.stride = chunks * kChunkInputs + Format::kPadding / Format::kInputBytes;
    places.group_stride = (chunks * Format::kChunkGroups) | 1;
    places.values = take(places.stride * rows * Format::kColumns * Format::kInputBytes);
    places.groups = take(Format::kGroupBytes * places.group_stride * rows);
  }
  places.squares = take(slices * rows * 4);
  places.partials = take(args.buffers * slices * rows * args.block_tiles * kTileRows * 4);
  places.total = end;
  return places;
}

// Whether one block of threads on each multiprocessor has no more than two tiles, so that a second
// would only prepare the activations again; the next kernel's blocks have the room, unless
// takes_all_memory().
bool one_block_suffices(const Device& device, const LinearArgs& args) {
  return total_tiles(args) <= 2 * device.num_sms();
}

// Whether a block takes a whole multiprocessor's memory for its rings: where it is alone there
// anyway, and has a row of more than 8192 inputs, beside which half of it has room for two stages
// and all of it for five. (More such rows are shared out in a cluster, in another format.)
// NOTE: measured on an H200 with 11008 and 14336 inputs: docs/results-h200.md, "Rings of long
// rows". Between 4224 and 8192 inputs, where half has room for two stages, too, nothing was
// measured. The next kernel's blocks then come later.
template <typename Format>
bool takes_all_memory(const Device& device, const LinearArgs& args) {
  return Format::kStageUnits == 2 && args.chunks > 8 * kSlices && one_block_suffices(device, args);
}

// The row_warps to begin with. Narrow blocks finish with few barriers and clusters leave
// multiprocessors idle, wide ones prepare fewer activations.
// NOTE: measured on an H200 with the matrices of 7B and 8B models. Planes: with up to 14 chunks of
// activations for a warp, of matrices that take more than a block 16, 1 is the fastest; 2 is up to
// 16, of the largest matrices up to 32; then 8. Where activations are streamed nothing is prepared.
// fp32 was measured with 16 bits: as narrow as leaves room for a ring of 4 stages, but from 5 rows
// on 8 for the largest.
template <typename Format>
int narrowest(const Device& device, LinearArgs& args) {
  constexpr int kRoom[] = {68 << 10, 116 << 10};  // for activations, with 1 and 2 row_warps
  if (wants_whole_heads(args)) return kSlices;
  if (kStreamed<Format>) return 1;
  if (Format::kPlanes) {
    const int chunks = divide_up(args.num_rows * args.chunks, kLinearWarps);  // of a warp, with 1
    if (chunks <= (one_block_suffices(device, args) ? 14 : 16)) return 1;
    return chunks <= (total_tiles(args) > 12 * device.num_sms() ? 32 : 16) ? 2 : kSlices;
  }
  if (args.num_rows > 4 && total_tiles(args) > 8 * device.num_sms()) return kSlices;
  for (int i = 0; i < 2; ++i) {
    set_row_blocks(args, 1 << i);
    const LinearPlaces places = places_of<Format>(args);
    if (places.groups - places.values <= kRoom[i]) return 1 << i;
  }
  return kSlices;
}

// Shares the op's work out: rows of a launch (at most args.num_rows), tiles and slices of a block,
// stages of its rings. Two blocks of threads fit on a multiprocessor if that is possible; one,
// where activations are streamed (what counts then is how much is under way) and where
// takes_all_memory(). False: not one activation row fits.
// NOTE: more than 5 stages are slower there: measured on an H200, with 6 a 7B layer's products take
// 105 instead of 100 us at one row.
template <typename Format>
bool share_out(const Device& device, LinearArgs& args) {
  const int room = static_cast<int>(device.max_shared_bytes());
  const int half_room = (room + 1024) / 2 - 1024;  // the system takes 1 KB of each block
  const int widest = device.capability() >= 90 ? kSlices : 1;
  const auto settle = [&](int row_warps, int buffers, int bytes, int least_depth) {
    for (const int depth : kDepths) {
      if (depth < least_depth) break;
      if (kStreamed<Format> && depth > 5) continue;
      set_row_blocks(args, row_warps);
      args.depth = depth;
      args.buffers = buffers;
      args.places = places_of<Format>(args);
      if (args.places.total <= bytes) return true;
    }
    return false;
  };
  for (; args.num_rows > 0; --args.num_rows) {
    int row_warps = std::min(widest, narrowest<Format>(device, args));
    if constexpr (kStreamed<Format>) {
      const int least_buffers = row_warps == 1 ? 1 : 2;
      for (const int depth : {3, 2}) {
        for (int buffers = 2; buffers >= least_buffers; --buffers) {
          if (settle(row_warps, buffers, room, depth)) return true;
        }
      }
    } else {
      for (; row_warps <= widest; row_warps *= 2) {
        if ((!takes_all_memory<Format>(device, args) &&
             settle(row_warps, 2, half_room, divide_up(3, Format::kStageUnits))) ||
            settle(row_warps, 2, room, 2)) {
          return true;
        }
      }
    }
  }
  return false;
}

// How many chunks of the inputs one launch takes: all where clusters share them or where they are
// streamed. Otherwise (before 9.0) a long activation row may not fit in a block's shared memory;
// what is added to something is then added part by part, and the parts are the same for every
// number of rows.
template <typename Format>
int chunks_of_part(const Device& device, const LinearArgs& args) {
  if (args.op != LinearOp::kAdd || kStreamed<Format> || device.capability() >= 90) {
    return args.chunks;
  }
  LinearArgs one = args;
  for (int parts = 1; parts <= args.chunks; ++parts) {
    one.num_rows = 1;
    one.chunks = divide_up(args.chunks, parts);
    if (share_out<Format>(device, one)) return one.chunks;
  }
  return args.chunks;
}

// The op over so many chunks of the inputs, from a chunk on.
template <typename Format>
LinearArgs part_of(const LinearArgs& args, int first_chunk, int chunks) {
  if (chunks == args.chunks) return args;
  LinearArgs part = args;
  const int first = first_chunk * kChunkInputs, unit = first / Format::kUnit;
  LinearSource& source = part.sources[0];
  part.cols = std::min(chunks * kChunkInputs, args.cols - first);
  part.units = divide_up(part.cols, Format::kUnit);
  part.chunks = divide_up(part.cols, kChunkInputs);
  part.x += first;
  source.data += std::ptrdiff_t{unit} * Format::kUnitStep;
  if (source.lower != nullptr) source.lower += std::ptrdiff_t{unit} * kLowerUnitBytes;
  if (first > 0) source.bias = nullptr;
  return part;
}

// --- launching -----------------------------------------------------------------------------------

template <typename Format, int kTiles, int kOp, bool kAlone>
void launch(Device& device, const LinearArgs& args) {
  constexpr auto kernel = decode_linear<Format, kTiles, kOp, kAlone>;
  device.kernels().allow_shared(kernel, Kernels::Prefers::kShared);
  cudaLaunchConfig_t config{};
  config.blockDim = kLinearThreads;
  config.dynamicSmemBytes = args.places.total;
  config.stream = device.stream();
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = device.may_begin_early();
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(args.row_warps), 1, 1};
  config.attrs = attributes;
  config.numAttrs = device.capability() < 90 ? 0 : args.row_warps == 1 ? 1 : 2;
  int clusters = device.kernels().resident_clusters(kernel, config, args.row_warps);
  if (Format::kPlanes && one_block_suffices(device, args)) {
    clusters = std::min(clusters, device.num_sms() / args.row_warps);
  }
  config.gridDim = std::min(args.row_blocks, clusters) * args.row_warps;
  QUANTSPEC_CUDA(cudaLaunchKernelEx(&config, kernel, args));
}

// Whether there are no clusters, and activations and their norms are as models mostly have them.
bool is_alone(const LinearArgs& args) {
  return args.row_warps == 1 && args.x_stride % 4 == 0 &&
         (args.op == LinearOp::kAdd || args.norm.weight != nullptr) && !wants_whole_heads(args);
}

// Formats that models mostly have get kernels of their own for each op, and again for a row or a
// few where is_alone(): small ones, which come into the instruction cache sooner. Of those with two
// units to a stage there are no others.
template <typename Format, int kTiles, int kOp>
void launch_op(Device& device, const LinearArgs& args) {
  if constexpr (Format::kOfEachOp && (kTiles == 1 || kStreamed<Format>)) {
    if (Format::kStageUnits == 2 || is_alone(args)) {
      return launch<Format, kTiles, kOp, true>(device, args);
    }
  }
  if constexpr (Format::kStageUnits == 1) launch<Format, kTiles, kOp, false>(device, args);
}
template <typename Format, int kTiles>
void launch_op(Device& device, const LinearArgs& args) {
  if constexpr (Format::kOfEachOp) {
    switch (args.op) {
      case LinearOp::kStore:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kStore)>(device, args);
      case LinearOp::kAdd:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kAdd)>(device, args);
      case LinearOp::kGateUp:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kGateUp)>(device, args);
      case LinearOp::kQkv:
        return launch_op<Format, kTiles, static_cast<int>(LinearOp::kQkv)>(device, args);
    }
  } else {
    launch_op<Format, kTiles, kAnyOp>(device, args);
  }
}

// The op's rows [args.first_row, end), some at a time, with the kernel of kTiles for as many.
template <typename Format, int... kTiles>
void run_rows(Device& device, LinearArgs args, int end) {
  constexpr int kMost = std::min(kMaxRows, std::max({Format::max_rows(kTiles)...}));
  for (; args.first_row < end; args.first_row += args.num_rows) {
    args.num_rows = std::min(end - args.first_row, kMost);
    if (!share_out<Format>(device, args)) {
      fail(ErrorKind::kUnsupportedModel,
           "a matrix of {} inputs: an activation row does not fit in {} bytes of shared memory",
           args.cols, device.max_shared_bytes());
    }
    bool done = false;
    const auto launch_where_enough = [&]<int kCount>() {
      if (done || args.num_rows > Format::max_rows(kCount)) return;
      launch_op<Format, kCount>(device, args);
      done = true;
    };
    (launch_where_enough.template operator()<kTiles>(), ...);
  }
}

// With parts of so many chunks.
template <typename Format, int... kTiles>
void run(Device& device, LinearArgs args, int part_chunks, int end) {
  args.units = divide_up(args.cols, Format::kUnit);
  for (int first = 0; first < args.chunks; first += part_chunks) {
    run_rows<Format, kTiles...>(device, part_of<Format>(args, first, part_chunks), end);
  }
}
template <typename Format, int... kTiles>
void run(Device& device, const LinearArgs& args, int end) {
  run<Format, kTiles...>(device, args, chunks_of_part<Format>(device, args), end);
}

// With a format of two units to a stage, if the rows suit it: a few, in one launch that is_alone(),
// with bulk copies and room for large rings. False: they do not.
template <typename Format>
bool run_alone(Device& device, LinearArgs args, int end) {
  const int num_rows = end - args.first_row;
  if (device.capability() < 90 || num_rows > Format::max_rows(1)) return false;
  args.units = divide_up(args.cols, Format::kUnit);
  args.num_rows = num_rows;
  if (!share_out<Format>(device, args) || args.num_rows < num_rows || !is_alone(args)) return false;
  launch_op<Format, 1>(device, args);
  return true;
}

// Fills in what the matrices of an op have in common, and runs its rows [args.first_row, end).
void run(Device& device, LinearArgs args, WeightRead read, const Linear& first, int end) {
  args.cols = args.x_stride = first.inputs();
  args.chunks = divide_up(args.cols, kChunkInputs);
  args.group = first.group;
  if (read == WeightRead::kFull) {
    args.stride = padded_cols(args.cols) * size_of(first.full.dtype);
    switch (first.full.dtype) {
      case DType::kF32:
        return run<Fp32Format, 4>(device, args, end);
      case DType::kF16:
        return run<FullFormat<__half>, 1, 2, 3>(device, args, end);
      case DType::kBF16:
        return run<FullFormat<__nv_bfloat16>, 1, 2, 3>(device, args, end);
    }
  }
  const std::size_t units = plane_units(args.cols);
  args.stride = units * upper_unit_bytes(args.group);
  args.lower_stride = units * kLowerUnitBytes;
  const auto run_planes = [&]<bool kBoth, int kGroup>() {
    if constexpr (!kBoth && kGroup == 128) {
      if (run_alone<PlaneFormat<kBoth, kGroup, 2, 2>>(device, args, end)) return;
    }
    using TwoTiles = PlaneFormat<kBoth, kGroup, 2>;
    const int part_chunks = chunks_of_part<TwoTiles>(device, args);
    if (end - args.first_row <= TwoTiles::max_rows(2)) {
      run<TwoTiles, 1, 2>(device, args, part_chunks, end);
    } else {  // sums of two tiles would not fit in registers
      run<PlaneFormat<kBoth, kGroup, 1>, 5>(device, args, part_chunks, end);
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
  const bool full = read == WeightRead::kFull;
  check(full || linear.upper != nullptr, "4-bit weights are read but no planes were made");
  check(read != WeightRead::kBoth || linear.lower != nullptr,
        "8-bit weights are read but only the upper plane was made");
  return {.data = full ? static_cast<const std::byte*>(linear.full.data) : linear.upper,
          .lower = linear.lower,
          .bias = linear.bias,
          .outputs = linear.outputs(),
          .tiles = row_tiles(linear.outputs())};
}

// Whether matrices can be read by one launch.
bool alike(const Linear& a, const Linear& b, WeightRead read) {
  return a.inputs() == b.inputs() &&
         (read == WeightRead::kFull ? a.full.dtype == b.full.dtype : a.group == b.group);
}

}  // namespace

void decode_qkv(Device& device, const QkvParams& params) {
  const KvShape& shape = params.shape;
  check(shape.head_dim % 16 == 0 && shape.head_dim <= 256,
        "head_dim is a multiple of 16 up to 256");
  const Linear& first = params.q_out != nullptr ? *params.q : *params.k;
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
    args.qkv.sequences = device.tables(params.sequences, params.num_rows, shape.num_kv_heads);
  }
  run(device, args, params.weights, first, params.num_rows);
}

void decode_add_linear(Device& device, const AddLinearParams& params) {
  const Linear& linear = *params.linear;
  run(device,
      {.op = LinearOp::kAdd,
       .sources = {source_of(linear, params.weights)},
       .x = params.in,
       .norm = {},
       .out = params.x},
      params.weights, linear, params.num_rows);
}

void decode_gate_up(Device& device, const GateUpParams& params) {
  const Linear &gate = *params.gate, &up = *params.up;
  check(gate.outputs() == up.outputs() && alike(gate, up, params.weights),
        "gate and up have shape, element type and groups in common");
  run(device,
      {.op = LinearOp::kGateUp,
       .sources = {source_of(gate, params.weights), source_of(up, params.weights)},
       .x = params.x,
       .norm = params.norm,
       .out = params.out},
      params.weights, gate, params.num_rows);
}

void head(Device& device, const HeadParams& params) {
  const Linear& linear = *params.head;
  run(device,
      {.op = LinearOp::kStore,
       .sources = {source_of(linear, params.weights)},
       .x = params.x,
       .norm = params.norm,
       .out = params.logits},
      params.weights, linear, params.num_rows);
}

}  // namespace quantspec::cuda
