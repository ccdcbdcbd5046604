#include "backend/cpu/linear.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/prefill.h"
#include "backend/cpu/weight_planes.h"
#include "backend/params/segments.h"
#include "base/error.h"

namespace quantspec::cpu {

static_assert(1 << kSegmentLevels == kMostSegments);

namespace {

// A unit is a piece of the outputs of one projection that one thread computes for all rows: small
// enough to balance the threads, and its weights small enough for the nearest caches, but the
// outputs that kernels compute side by side are together. kTileOutputs at least: a small matrix has
// fewer units than many threads would want.
constexpr std::int64_t kUnitsPerThread = 8;
constexpr std::size_t kUnitBytes = 128 * 1024;
constexpr std::int64_t kOutputsTogether = 4 * kTileOutputs;

// Inputs of one step of integer activations: as long as the weights' own groups, but not shorter
// than 64, for every step costs a sum. So matrices in smaller groups share the integers of a row.
constexpr int kShortStep = 64, kLongStep = 128;
constexpr int step_of(const WeightFormat& format) {
  return format.group == kShortStep ? kShortStep : kLongStep;
}

// Bytes that a pass reads of the weights of one output, about.
std::size_t bytes_per_output(const Matrix& matrix, WeightRead read) {
  const auto inputs = static_cast<std::size_t>(matrix.cols);
  if (matrix.format.dense()) return inputs * size_of(matrix.format.dtype);
  const int bits = read == WeightRead::kUpper ? 4 : matrix.format.bits;
  return (inputs * bits + 7) / 8;
}

int outputs_per_unit(const ProjectParams& params, int num_threads) {
  std::int64_t outputs = 0;
  std::size_t bytes = 1;
  for (const Projection& p : params.projections) {
    outputs += p.linear->outputs();
    bytes = std::max(bytes, bytes_per_output(matrix_of(*p.linear, params.weights), params.weights));
  }
  const std::int64_t balanced = outputs / (kUnitsPerThread * num_threads);
  const auto cached = std::max(static_cast<std::int64_t>(kUnitBytes / bytes), kOutputsTogether);
  const std::int64_t unit = std::min(balanced, cached);
  const std::int64_t whole = unit < kOutputsTogether ? kTileOutputs : kOutputsTogether;
  return static_cast<int>(std::max<std::int64_t>(unit / whole * whole, kTileOutputs));
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

// Rows as integers, in steps of so many inputs, with the sums that weights in groups of at least
// `least` inputs want.
QuantizedRows quantize_rows(const Context& context, const ProjectParams& params, int step,
                            int least) {
  const int inputs = params.projections[0].linear->inputs();
  QuantizedRows x;
  x.padded = (inputs + 31) / 32 * 32;
  x.step = step;
  x.steps = (inputs + step - 1) / step;
  x.parts = step / least;
  const auto rows = static_cast<std::size_t>(params.rows);
  const int name = step == kShortStep ? 0 : 1;
  x.codes = context.scratch.get<std::int8_t>(static_cast<Scratch::Name>(Scratch::kCodes + name),
                                             2 * rows * x.padded);
  x.records = context.scratch.get<float>(static_cast<Scratch::Name>(Scratch::kRecords + name),
                                         2 * rows * x.steps * x.parts);
  for_rows(context.pool, params.rows, [&](int row) {
    const float* in = params.x + static_cast<std::size_t>(row) * inputs;
    context.kernels.linear.quantize_row(in, inputs, params.weights != WeightRead::kUpper, x, row);
  });
  return x;
}

// The inputs of a region in every form that one of its matrices is multiplied by.
struct RegionInputs {
  const float* arranged[3] = {};  // by DType
  QuantizedRows short_steps, long_steps;

  RegionInputs(const Context& context, const ProjectParams& params) {
    int least[2] = {};  // group of short and of long steps; 0: none
    for (const Projection& p : params.projections) {
      const WeightFormat& format = matrix_of(*p.linear, params.weights).format;
      if (format.dense()) {
        const float*& x = arranged[static_cast<int>(format.dtype)];
        if (x == nullptr) x = arrange_rows(context, params, format.dtype);
      } else {
        int& group = least[step_of(format) == kShortStep ? 0 : 1];
        group = group == 0 ? format.group : std::min(group, format.group);
      }
    }
    if (least[0] > 0) short_steps = quantize_rows(context, params, kShortStep, least[0]);
    if (least[1] > 0) long_steps = quantize_rows(context, params, kLongStep, least[1]);
  }
};

// Where a unit's weights begin; null, both: none, or no lower plane.
struct UnitWeights {
  const std::byte* first = nullptr;
  const std::byte* lower = nullptr;
};
UnitWeights weights_of(const Unit& unit, WeightRead read) {
  if (unit.projection == nullptr) return {};
  const Matrix& w = matrix_of(*unit.projection->linear, read);
  const auto* data = static_cast<const std::byte*>(w.data);
  const auto first = static_cast<std::size_t>(unit.first);
  if (w.format.dense()) return {data + first * w.cols * size_of(w.format.dtype)};
  const PlaneLayout layout(w.format, w.cols);
  const std::size_t block = first / kTileOutputs;
  if (read == WeightRead::kUpper || layout.lower_bytes == 0) {
    return {data + block * layout.upper_bytes};
  }
  return {data + block * layout.upper_bytes,
          static_cast<const std::byte*>(w.lower) + block * layout.lower_bytes};
}

void multiply_elements(const Context& context, const ProjectParams& params, const RegionInputs& x,
                       const Unit& unit, const Unit& next) {
  const Projection& p = *unit.projection;
  const Matrix& w = matrix_of(*p.linear, params.weights);
  const int dtype = static_cast<int>(w.format.dtype);
  const Segments segments = segments_of(*p.linear, params.weights);
  context.kernels.linear.full_gemv[dtype]({
      .weights = weights_of(unit, params.weights).first,
      .outputs = unit.outputs,
      .inputs = w.cols,
      .segments = {segments.count, segments.ends},
      .x = x.arranged[dtype],
      .rows = params.rows,
      .out = output_of(params, p, unit.first),
      .next = weights_of(next, params.weights).first,
  });
}

void multiply_planes(const Context& context, const ProjectParams& params, const RegionInputs& x,
                     const Unit& unit, const Unit& next) {
  const Projection& p = *unit.projection;
  const Matrix& w = matrix_of(*p.linear, params.weights);
  const bool upper_only = params.weights == WeightRead::kUpper;
  const PlaneLayout layout(w.format, w.cols);
  const Segments segments = segments_of(*p.linear, params.weights);
  const UnitWeights planes = weights_of(unit, params.weights);
  const UnitWeights ahead = weights_of(next, params.weights);
  // Codes that differ in their lower bits alone are read as the centre of their cell.
  const float cell = upper_only ? static_cast<float>(1 << layout.format.lower_bits) : 1.0f;
  const float unit_scale = std::ldexp(1.0f, w.format.exponent);
  const int zero = w.format.table == CodeTable::kNone ? w.format.zero : kTableZero;
  context.kernels.linear.plane_gemv({
      .format = layout.format,
      .upper = planes.first,
      .lower = planes.lower,
      .upper_bytes = static_cast<std::ptrdiff_t>(layout.upper_bytes),
      .lower_bytes = static_cast<std::ptrdiff_t>(layout.lower_bytes),
      .split = !upper_only,
      .factor = unit_scale * cell,
      .centre = unit_scale * ((cell - 1) / 2 - static_cast<float>(zero)),
      .outputs = unit.outputs,
      .inputs = w.cols,
      .segments = {segments.count, segments.ends},
      .x = step_of(w.format) == kShortStep ? x.short_steps : x.long_steps,
      .rows = params.rows,
      .out = output_of(params, p, unit.first),
      .next_upper = ahead.first,
      .next_lower = ahead.lower,
  });
}

void project_rows(const Context& context, const ProjectParams& params) {
  const RegionInputs x(context, params);
  for_units(context, params, [&](const Unit& unit, const Unit& next) {
    const bool dense = matrix_of(*unit.projection->linear, params.weights).format.dense();
    (dense ? multiply_elements : multiply_planes)(context, params, x, unit, next);
  });
}

}  // namespace

void project(const Context& context, const ProjectParams& params) {
  check(params.projections.size() <= kMostProjections, "a region has few projections");
  for (const Projection& p : params.projections) {
    check(p.linear->inputs() == params.projections[0].linear->inputs(),
          "projections of one region read the same input");
    check(readable(*p.linear, params.weights), "a pass reads weight planes that were not made");
  }
  if (params.phase == Phase::kPrefill && params.weights == WeightRead::kTarget) {
    project_prefill(context, params);
  } else {
    project_rows(context, params);
  }
}

}  // namespace quantspec::cpu
