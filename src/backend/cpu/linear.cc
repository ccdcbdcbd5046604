#include "backend/cpu/linear.h"

#include <algorithm>
#include <array>

#include "backend/cpu/prefill.h"
#include "backend/cpu/weight_planes.h"
#include "base/error.h"

namespace quantspec::cpu {

namespace {

// A unit is a piece of the outputs of one projection that one thread computes for all rows: small
// enough to balance the threads, and its weights small enough for the nearest caches. kTileOutputs
// at least: a small matrix has fewer units than many threads would want.
constexpr std::int64_t kUnitsPerThread = 8;
constexpr std::size_t kUnitBytes = 128 * 1024;

// Bytes that a pass reads of the weights of one output.
std::size_t bytes_per_output(const ProjectParams& params) {
  const TensorView& full = params.projections[0].linear->full;
  const auto inputs = static_cast<std::size_t>(full.cols);
  switch (params.weights) {
    case WeightRead::kUpper:
      return (inputs + 1) / 2;
    case WeightRead::kBoth:
      return inputs;
    case WeightRead::kFull:
      break;
  }
  return inputs * size_of(full.dtype);
}

int outputs_per_unit(const ProjectParams& params, int num_threads) {
  std::int64_t outputs = 0;
  for (const Projection& p : params.projections) outputs += p.linear->outputs();
  const std::int64_t balanced = outputs / (kUnitsPerThread * num_threads);
  const auto cached = static_cast<std::int64_t>(kUnitBytes / bytes_per_output(params));
  const std::int64_t unit = std::min(balanced, cached) / kTileOutputs * kTileOutputs;
  return static_cast<int>(std::max<std::int64_t>(unit, kTileOutputs));
}

// Some consecutive outputs of one projection.
struct Unit {
  const Projection* projection = nullptr;  // null: no unit
  int first = 0;
  int outputs = 0;
};

// Calls f(unit, next) for every unit. next: the unit that this thread computes after it, so that
// its weights can be prefetched; none where another thread might be free for it sooner.
template <typename F>
void for_units(const Context& context, const ProjectParams& params, const F& f) {
  const int size = outputs_per_unit(params, context.pool.num_threads());
  const auto units_of = [&](const Projection& p) {
    return (p.linear->outputs() + size - 1) / size;
  };
  const auto unit = [&](std::int64_t index) {
    const Projection* p = params.projections.data();
    for (; index >= units_of(*p); ++p) index -= units_of(*p);
    const int first = static_cast<int>(index) * size;
    return Unit{p, first, std::min(size, p->linear->outputs() - first)};
  };
  // A range each: every memory node has its share of every matrix, as in fill_planes().
  std::array<IndexRange, kMostProjections> ranges;
  for (std::size_t i = 0; i < params.projections.size(); ++i) {
    ranges[i] = {units_of(params.projections[i])};
  }
  const std::span<const IndexRange> all(ranges.data(), params.projections.size());
  context.pool.share_indices(all, [&](HandOut& units, int thread) {
    const std::int64_t count = units.count();
    for (std::int64_t index = units.take(thread); index < count;) {
      const bool ahead = index + context.pool.num_threads() < count;
      const std::int64_t following = ahead ? units.take(thread) : count;
      f(unit(index), following < count ? unit(following) : Unit{});
      index = ahead ? following : units.take(thread);
    }
  });
}

LinearOutput output_of(const ProjectParams& params, const Projection& p, int first) {
  const float* bias = p.linear->bias == nullptr ? nullptr : p.linear->bias + first;
  return {p.y + first, p.linear->outputs(), bias, params.accumulate};
}

// The inputs in the order that weights of this type are read in.
const float* arrange_rows(const Context& context, const ProjectParams& params, DType dtype) {
  const int inputs = params.projections[0].linear->inputs();
  const std::size_t padded = (inputs + kInputBlock - 1) / kInputBlock * kInputBlock;
  const auto name = static_cast<Scratch::Name>(Scratch::kArranged + static_cast<int>(dtype));
  float* x = context.scratch.get<float>(name, params.rows * padded);
  context.kernels.linear.arrange[static_cast<int>(dtype)](params.x, params.rows, inputs, x);
  return x;
}

// What a unit reads; null for none.
const std::byte* full_weights(const Unit& unit) {
  if (unit.projection == nullptr) return nullptr;
  const TensorView& w = unit.projection->linear->full;
  const std::size_t offset = static_cast<std::size_t>(unit.first) * w.cols * size_of(w.dtype);
  return static_cast<const std::byte*>(w.data) + offset;
}

void project_full(const Context& context, const ProjectParams& params) {
  const float* x[3] = {};  // by DType
  for (const Projection& p : params.projections) {
    const DType dtype = p.linear->full.dtype;
    const float*& arranged = x[static_cast<int>(dtype)];
    if (arranged == nullptr) arranged = arrange_rows(context, params, dtype);
  }
  for_units(context, params, [&](const Unit& unit, const Unit& next) {
    const Projection& p = *unit.projection;
    const TensorView& w = p.linear->full;
    context.kernels.linear.full_gemv[static_cast<int>(w.dtype)]({
        .weights = full_weights(unit),
        .outputs = unit.outputs,
        .inputs = w.cols,
        .x = x[static_cast<int>(w.dtype)],
        .rows = params.rows,
        .out = output_of(params, p, unit.first),
        .next = full_weights(next),
    });
  });
}

QuantizedRows quantize_rows(const Context& context, const ProjectParams& params, bool split) {
  const int inputs = params.projections[0].linear->inputs();
  QuantizedRows x;
  x.padded = (inputs + 15) / 16 * 16;
  x.group = params.projections[0].linear->group;
  x.groups = weight_groups(inputs, x.group);
  x.codes = context.scratch.get<std::int8_t>(Scratch::kCodes,
                                             static_cast<std::size_t>(2) * params.rows * x.padded);
  x.scales = context.scratch.get<float>(Scratch::kScales,
                                        static_cast<std::size_t>(2) * params.rows * x.groups);
  for_rows(context.pool, params.rows, [&](int row) {
    const float* in = params.x + static_cast<std::size_t>(row) * inputs;
    context.kernels.linear.quantize_row(in, inputs, split, x, row);
  });
  return x;
}

const std::byte* upper_planes(const Unit& unit) {
  if (unit.projection == nullptr) return nullptr;
  const Linear& linear = *unit.projection->linear;
  const std::size_t block = static_cast<std::size_t>(unit.first) / kTileOutputs;
  return linear.upper + block * upper_block_bytes(linear.inputs(), linear.group);
}
const std::byte* lower_planes(const Unit& unit) {
  if (unit.projection == nullptr) return nullptr;
  const Linear& linear = *unit.projection->linear;
  const std::size_t block = static_cast<std::size_t>(unit.first) / kTileOutputs;
  return linear.lower + block * lower_block_bytes(linear.inputs());
}

void project_planes(const Context& context, const ProjectParams& params) {
  const bool both = params.weights == WeightRead::kBoth;
  for (const Projection& p : params.projections) {
    check(p.linear->upper != nullptr && (!both || p.linear->lower != nullptr),
          "a pass reads weight planes that were not made");
    check(p.linear->group == params.projections[0].linear->group,
          "projections of one region have planes of equal groups");
  }
  const QuantizedRows x = quantize_rows(context, params, both);
  for_units(context, params, [&](const Unit& unit, const Unit& next) {
    const Projection& p = *unit.projection;
    context.kernels.linear.plane_gemv({
        .upper = upper_planes(unit),
        .lower = both ? lower_planes(unit) : nullptr,
        .outputs = unit.outputs,
        .inputs = p.linear->inputs(),
        .x = x,
        .rows = params.rows,
        .out = output_of(params, p, unit.first),
        .next_upper = upper_planes(next),
        .next_lower = both ? lower_planes(next) : nullptr,
    });
  });
}

}  // namespace

void project(const Context& context, const ProjectParams& params) {
  check(params.projections.size() <= kMostProjections, "a region has few projections");
  for (const Projection& p : params.projections) {
    check(p.linear->inputs() == params.projections[0].linear->inputs(),
          "projections of one region read the same input");
  }
  if (params.weights != WeightRead::kFull) {
    project_planes(context, params);
  } else if (params.phase == Phase::kPrefill) {
    project_prefill(context, params);
  } else {
    project_full(context, params);
  }
}

}  // namespace quantspec::cpu
