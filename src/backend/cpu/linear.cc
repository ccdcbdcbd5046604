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

// Bytes that a pass reads of the weights of one output, about.
std::size_t bytes_per_output(const ProjectParams& params) {
  const Matrix& matrix = matrix_of(*params.projections[0].linear, params.weights);
  const auto inputs = static_cast<std::size_t>(matrix.cols);
  if (matrix.format.dense()) return inputs * size_of(matrix.format.dtype);
  const int bits = params.weights == WeightRead::kUpper ? 4 : matrix.format.bits;
  return (inputs * bits + 7) / 8;
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
  const Matrix& w = unit.projection->linear->target;
  const std::size_t offset =
      static_cast<std::size_t>(unit.first) * w.cols * size_of(w.format.dtype);
  return static_cast<const std::byte*>(w.data) + offset;
}

void project_full(const Context& context, const ProjectParams& params) {
  const float* x[3] = {};  // by DType
  for (const Projection& p : params.projections) {
    const DType dtype = p.linear->target.format.dtype;
    const float*& arranged = x[static_cast<int>(dtype)];
    if (arranged == nullptr) arranged = arrange_rows(context, params, dtype);
  }
  for_units(context, params, [&](const Unit& unit, const Unit& next) {
    const Projection& p = *unit.projection;
    const Matrix& w = p.linear->target;
    context.kernels.linear.full_gemv[static_cast<int>(w.format.dtype)]({
        .weights = full_weights(unit),
        .outputs = unit.outputs,
        .inputs = w.cols,
        .x = x[static_cast<int>(w.format.dtype)],
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
  x.group = matrix_of(*params.projections[0].linear, params.weights).format.group;
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

// What a unit reads of each plane; null for none.
struct UnitPlanes {
  const std::byte* upper = nullptr;
  const std::byte* lower = nullptr;
};
UnitPlanes planes_of(const Unit& unit, WeightRead read) {
  if (unit.projection == nullptr) return {};
  const Matrix& w = matrix_of(*unit.projection->linear, read);
  const std::size_t block = static_cast<std::size_t>(unit.first) / kTileOutputs;
  UnitPlanes planes{static_cast<const std::byte*>(w.data) +
                    block * upper_block_bytes(w.cols, w.format.group)};
  if (read != WeightRead::kUpper) {
    planes.lower = static_cast<const std::byte*>(w.lower) + block * lower_block_bytes(w.cols);
  }
  return planes;
}

void project_planes(const Context& context, const ProjectParams& params) {
  const WeightFormat& format = matrix_of(*params.projections[0].linear, params.weights).format;
  for (const Projection& p : params.projections) {
    check(readable(*p.linear, params.weights), "a pass reads weight planes that were not made");
    check(matrix_of(*p.linear, params.weights).format == format,
          "projections of one region have planes of equal groups");
  }
  const QuantizedRows x = quantize_rows(context, params, params.weights != WeightRead::kUpper);
  for_units(context, params, [&](const Unit& unit, const Unit& next) {
    const Projection& p = *unit.projection;
    const UnitPlanes planes = planes_of(unit, params.weights);
    const UnitPlanes ahead = planes_of(next, params.weights);
    context.kernels.linear.plane_gemv({
        .upper = planes.upper,
        .lower = planes.lower,
        .outputs = unit.outputs,
        .inputs = p.linear->inputs(),
        .x = x,
        .rows = params.rows,
        .out = output_of(params, p, unit.first),
        .next_upper = ahead.upper,
        .next_lower = ahead.lower,
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
  if (!matrix_of(*params.projections[0].linear, params.weights).format.dense()) {
    project_planes(context, params);
  } else if (params.phase == Phase::kPrefill) {
    project_prefill(context, params);
  } else {
    project_full(context, params);
  }
}

}  // namespace quantspec::cpu
