// y = W x at the few rows that decoding has: weights of 16 bits, our own planes, those of GGUF's
// formats.
//   dram    another matrix every time: what is read was last read a gigabyte ago
//   cache   one matrix of the bundled model, over and over
#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "apps/bench/lab.h"
#include "backend/params/pass.h"
#include "gguf/blocks.h"

namespace quantspec {

namespace {

// How weights are kept, and what a pass reads of them.
struct Reading {
  std::string name;
  WeightFormat format;
  WeightRead read;
  int segments = 1;  // of sums
};

struct Case {
  bool in_memory;
  Reading weights;
  int outputs, inputs;
  int rows;

  std::string name() const {
    return fmt::format("linear/{}/{}/{}x{}/r{}", in_memory ? "dram" : "cache", weights.name,
                       outputs, inputs, rows);
  }
};

std::size_t dense_bytes(const Case& c) {
  return std::size_t(c.outputs) * c.inputs * size_of(c.weights.format.dtype);
}

// Of codes, the planes that are read.
PlaneBytes planes_read(Lab& lab, const Case& c) {
  PlaneBytes planes = lab.backend().plane_bytes(c.outputs, c.inputs, c.weights.format);
  if (c.weights.read == WeightRead::kUpper) planes.lower = 0;
  return planes;
}

Work work_of(Lab& lab, const Case& c) {
  Work work;
  work.elements = double(c.outputs) * c.inputs;
  work.flops = 2 * work.elements * c.rows;
  if (c.weights.format.dense()) {
    work.bytes = static_cast<double>(dense_bytes(c));
  } else {
    const PlaneBytes planes = planes_read(lab, c);
    work.bytes = static_cast<double>(planes.upper + planes.lower);
  }
  return work;
}

// Any bits are codes, and those of the lab's values are usual scales.
Linear next(Lab& lab, const Case& c) {
  Matrix matrix{c.weights.format, c.outputs, c.inputs};
  if (c.weights.format.dense()) {
    matrix.data = lab.next_values(dense_bytes(c));
  } else {
    const PlaneBytes planes = planes_read(lab, c);
    matrix.data = lab.next_values(planes.upper);
    if (planes.lower > 0) matrix.lower = lab.next_values(planes.lower);
  }
  return {.target = matrix, .draft = matrix, .segments = c.weights.segments};
}

void run(benchmark::State& state, Lab& lab, const Case& c) {
  const std::vector<float> x = normal_values(std::size_t(c.rows) * c.inputs);
  std::vector<float> y(std::size_t(c.rows) * c.outputs);
  Linear linear = next(lab, c);
  const double each = time_each(state, [&] {
    if (c.in_memory) linear = next(lab, c);
    // The op that is nothing but a product: the head, without its norm.
    lab.backend().head({c.weights.read, x.data(), c.rows, {}, &linear, y.data()});
    benchmark::DoNotOptimize(y.data());
  });
  lab.report(state, each, work_of(lab, c), lab.threads());
}

void add(Lab& lab, const Case& c) {
  benchmark::RegisterBenchmark(c.name().c_str(),
                               [&lab, c](benchmark::State& state) { run(state, lab, c); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

struct Shape {
  int outputs, inputs;
};

void add_rows(Lab& lab, bool in_memory, Shape shape, const Reading& weights,
              std::initializer_list<int> row_counts) {
  for (const int rows : row_counts) {
    add(lab, {in_memory, weights, shape.outputs, shape.inputs, rows});
  }
}

void add_ours(Lab& lab, bool in_memory, Shape shape) {
  const WeightFormat kept = sliced_format(kFineGroup);  // as a CPU keeps elements for drafts
  add_rows(lab, in_memory, shape, {"upper", kept, WeightRead::kUpper}, {1});
  add_rows(lab, in_memory, shape, {"both", kept, WeightRead::kBoth}, {1});
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    add_rows(lab, in_memory, shape,
             {std::string(name_of(dtype)), dense_format(dtype), WeightRead::kTarget},
             {1, 2, 3, 5, 8});
  }
}

constexpr GgmlType kGgufTypes[] = {
    GgmlType::kQ8_0,   GgmlType::kQ4_0,   GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
    GgmlType::kQ2_K,   GgmlType::kQ3_K,   GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K,
    GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4};

// Of codes of 4 bits a draft reads what the target does, but by rows that are rounded to 8 bits.
void add_gguf(Lab& lab, bool in_memory, Shape shape) {
  for (const GgmlType type : kGgufTypes) {
    std::string name = name_of(type);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const WeightFormat format = format_of(type, name);
    add_rows(lab, in_memory, shape, {name, format, WeightRead::kTarget}, {1, 2, 4, 8});
    add_rows(lab, in_memory, shape, {name + "-upper", format, WeightRead::kUpper}, {1});
  }
}

// Sums in segments, as ranks could share them (backend/params/segments.h).
void add_segments(Lab& lab, bool in_memory, Shape shape, int segments) {
  const Reading readings[] = {
      {"bf16", dense_format(DType::kBF16), WeightRead::kTarget, segments},
      {"q4_k", format_of(GgmlType::kQ4_K, "q4_k"), WeightRead::kTarget, segments}};
  for (Reading reading : readings) {
    reading.name += fmt::format("-s{}", segments);
    add_rows(lab, in_memory, shape, reading, {1, 8});
  }
}

}  // namespace

void register_linear(Lab& lab) {
  for (const Shape shape : {Shape{4096, 4096}, {14336, 4096}}) add_ours(lab, true, shape);
  for (const Shape shape : {Shape{512, 512}, {1408, 512}, {512, 1408}, {8192, 512}}) {
    add_ours(lab, false, shape);
  }
  add_gguf(lab, true, {4096, 4096});
  add_gguf(lab, false, {512, 512});
  add_segments(lab, true, {4096, 4096}, 8);
  add_segments(lab, false, {512, 512}, 2);
}

}  // namespace quantspec
