#include <algorithm>
#include <initializer_list>

#include "backend/cuda/batch_linear.h"
#include "backend/cuda/coded_linear.h"
#include "backend/cuda/linear_full.cuh"
#include "backend/cuda/linear_launch.cuh"
#include "backend/cuda/linear_planes.cuh"
#include "backend/cuda/linear_rows.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/ranks.h"
#include "backend/params/pass.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// Fills in what the matrices of an op have in common, and runs its rows [args.first_row, end).
void run(OpLaunches& op, LinearArgs args, WeightRead read, const Linear& first, int end) {
  args.cols = args.x_stride = first.inputs();
  args.bands = divide_up(args.cols, kBandInputs);
  const WeightFormat& format = matrix_of(first, read).format;
  if (!format.dense() && !is_wide(format)) return run_coded(op, args, format, read, end);
  int tiles = 0;
  for (const LinearSource& source : args.sources) tiles += source.tiles;
  const Tuning& tuning = op.device().tuning();
  const auto batched = [&](int least) {
    return end - args.first_row >= least && batches_rows(op.device()) && args.segments == kSegments;
  };
  if (format.dense()) {
    args.stride = padded_cols(args.cols) * size_of(format.dtype);
    switch (format.dtype) {
      case DType::kF32:
        return run<Fp32Format, 4>(op, args, end);
      case DType::kF16:
      case DType::kBF16:
        if (batched(least_batch_rows(tuning, tiles, args.bands))) {
          return run_batch(op, args, format.dtype, end);
        }
        return format.dtype == DType::kF16 ? run<FullFormat<__half>, 1, 2, 3>(op, args, end)
                                           : run<FullFormat<__nv_bfloat16>, 1, 2, 3>(op, args, end);
    }
  }
  const std::size_t units = plane_units(args.cols);
  args.stride = units * upper_unit_bytes(format.group);
  args.lower_stride = units * kLowerUnitBytes;
  const auto run_planes = [&]<bool kBoth, int kGroup>() {
    if (kGroup == 128 && batched(least_batch_rows_of_planes(tuning, tiles, args.bands))) {
      return run_batch_of_planes(op, args, kBoth, end);
    }
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
  if (format.group == 64) {
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

bool alike(const Linear& a, const Linear& b, WeightRead read) {
  return matrix_of(a, read).format == matrix_of(b, read).format;
}

// An op of one matrix; args: all but its source.
void run_alone(Device& device, OpOrder order, LinearArgs args, const Linear& linear,
               WeightRead read, int num_rows) {
  OpLaunches op(device, order);
  args.sources[0] = source_of(linear, read);
  run(op, args, read, linear, num_rows);
}

void store(Device& device, const HeadParams& params) {
  run_alone(device, params.order,
            {.op = LinearOp::kStore, .x = params.x, .norm = params.norm, .out = params.logits},
            *params.head, params.weights, params.num_rows);
}

}  // namespace

// A launch for each format among the matrices.
void decode_qkv(Device& device, const QkvParams& params) {
  const KvShape& shape = params.shape;
  check(shape.head_dim % 16 == 0 && shape.head_dim <= 256,
        "head_dim is a multiple of 16 up to 256");
  OpLaunches op(device, params.order);
  LinearArgs args{.op = LinearOp::kQkv, .x = params.x, .norm = params.norm, .out = params.q_out};
  args.qkv.shape = shape;
  args.qkv.norms[0] = params.q_norm;
  args.qkv.norms[1] = params.k_norm;
  args.qkv.cos = params.cos;
  args.qkv.sin = params.sin;
  const Linear* left[kMaxSources] = {params.q_out != nullptr ? params.q : nullptr};
  if (!params.sequences.empty()) {
    args.qkv.sequences = op.tables(params.sequences, params.num_rows, shape.num_kv_heads);
    left[1] = params.k;
    left[2] = params.v;
  }
  for (const Linear*& next : left) {
    if (next == nullptr) continue;
    const Linear& first = *next;
    LinearArgs launch = args;
    for (int i = 0; i < kMaxSources; ++i) {
      if (left[i] == nullptr || !alike(first, *left[i], params.weights)) continue;
      check(left[i]->inputs() == first.inputs(), "Q, K and V have inputs in common");
      launch.sources[i] = source_of(*left[i], params.weights);
      left[i] = nullptr;
    }
    run(op, launch, params.weights, first, params.num_rows);
  }
}

// Of ranks each has some segments of the sums, which the others wait for.
void decode_add_linear(Device& device, const AddLinearParams& params) {
  const Linear& linear = *params.linear;
  if (device.num_shares() == 1) {
    return run_alone(device, params.order,
                     {.op = LinearOp::kAdd, .x = params.in, .norm = {}, .out = params.x}, linear,
                     params.weights, params.num_rows);
  }
  Linear columns = linear;
  columns.bias = nullptr;
  float* const sums = rank_scratch(device, params.num_rows, linear.outputs());
  run_alone(device, params.order,
            {.op = LinearOp::kPart,
             .segments = kSegments / device.num_shares(),
             .x = params.in,
             .norm = {},
             .out = sums},
            columns, params.weights, params.num_rows);
  device.ranks()->add_sums(sums, linear.bias, params.num_rows, linear.outputs(), params.x);
}

// One launch if both matrices have one format, as models mostly have them.
void decode_gate_up(Device& device, const GateUpParams& params) {
  const Linear &gate = *params.gate, &up = *params.up;
  check(gate.outputs() == up.outputs() && gate.inputs() == up.inputs(),
        "gate and up have their shape in common");
  if (!alike(gate, up, params.weights)) {
    const std::size_t count = static_cast<std::size_t>(params.num_rows) * up.outputs();
    auto* const of_up =
        reinterpret_cast<float*>(device.scratch(Scratch::kActivations, sizeof(float) * count));
    store(device, {params.weights, params.x, params.num_rows, params.norm, &gate, params.out,
                   params.order});
    store(device,
          {params.weights, params.x, params.num_rows, params.norm, &up, of_up, OpOrder::kOverlaps});
    return silu_times(device, count, params.out, of_up);
  }
  OpLaunches op(device, params.order);
  run(op,
      {.op = LinearOp::kGateUp,
       .sources = {source_of(gate, params.weights), source_of(up, params.weights)},
       .x = params.x,
       .norm = params.norm,
       .out = params.out},
      params.weights, gate, params.num_rows);
}

DecodeScratch decode_scratch(const Device& device, const PassSizes& sizes,
                             const RankSharing& sharing) {
  DecodeScratch scratch;
  const auto add = [&](int inputs, std::initializer_list<int> outputs, bool in_memory = false) {
    int tiles = 0;
    for (const int rows : outputs) tiles += row_tiles(rows);
    scratch.batch = std::max(scratch.batch, batch_scratch_bytes(device, inputs, tiles, in_memory));
  };
  if (batches_rows(device)) {
    add(sizes.hidden, {sizes.queries, sizes.keys, sizes.keys}, true);
    // Where matrices have formats of their own.
    add(sizes.hidden, {sizes.queries}, true);
    add(sizes.hidden, {sizes.queries, sizes.keys}, true);
    add(sizes.hidden, {sizes.keys, sizes.keys}, true);
    add(sizes.hidden, {sizes.keys}, true);
    add(sizes.queries, {sizes.hidden});
    add(sizes.hidden, {sizes.intermediate, sizes.intermediate}, true);
    add(sizes.hidden, {sizes.intermediate});
    add(sizes.intermediate, {sizes.hidden});
    add(sizes.hidden, {sizes.head});
  }
  const int rows = padded_rows_of(sizes.sequences, sizes.sequences * sizes.rows);
  // Of up, where gate and up have formats of their own.
  scratch.activations = sizeof(float) * static_cast<std::size_t>(rows) * sizes.intermediate;
  const int sums = sizes.ranks > 1 ? std::max(sizes.hidden, sizes.head) : 0;
  const int shares = sharing.shares_of_context(), queries = shares > 1 ? shares * sizes.queries : 0;
  if (sums > 0 || queries > 0) {
    scratch.of_rank = rank_scratch_bytes(rows, std::max(sums, queries));
  }
  return scratch;
}

void head(Device& device, const HeadParams& params) {
  if (params.num_rows == 0 || device.num_shares() == 1) return store(device, params);
  HeadParams own = params;
  own.logits = rank_scratch(device, params.num_rows, params.head->outputs());
  store(device, own);
  device.ranks()->gather(own.logits, params.num_rows, params.head->outputs(), params.logits);
}

}  // namespace quantspec::cuda
