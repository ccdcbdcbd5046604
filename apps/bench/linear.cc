// y = W x at the few rows that decoding has: checkpoint weights, the upper plane, both planes.
//   dram    another matrix every time: what is read was last read a gigabyte ago
//   cache   one matrix of the bundled model, over and over
#include <fmt/core.h>

#include "apps/bench/lab.h"
#include "backend/params/pass.h"

namespace quantspec {

namespace {

struct Case {
  bool in_memory;
  WeightRead read;
  DType dtype;  // of kTarget
  int outputs, inputs;
  int rows;

  std::string name() const {
    const auto what = read == WeightRead::kTarget  ? name_of(dtype)
                      : read == WeightRead::kUpper ? "upper"
                                                   : "both";
    return fmt::format("linear/{}/{}/{}x{}/r{}", in_memory ? "dram" : "cache", what, outputs,
                       inputs, rows);
  }
};

Work work_of(Lab& lab, const Case& c) {
  Work work;
  work.elements = double(c.outputs) * c.inputs;
  work.flops = 2 * work.elements * c.rows;
  work.bytes = 2 * work.elements;
  if (c.read != WeightRead::kTarget) {
    const PlaneBytes planes = lab.backend().plane_bytes(c.outputs, c.inputs);
    work.bytes = static_cast<double>(planes.upper);
    if (c.read == WeightRead::kBoth) work.bytes += static_cast<double>(planes.lower);
  }
  return work;
}

Linear next(Lab& lab, const Case& c) {
  if (c.read != WeightRead::kTarget) {
    const std::size_t bytes = lab.backend().plane_bytes(c.outputs, c.inputs).upper;
    return lab.weights(c.inputs, c.in_memory ? kBeyondCaches : bytes).next(c.outputs);
  }
  Linear linear;
  linear.target =
      dense({lab.next_values(std::size_t{2} * c.outputs * c.inputs), c.dtype, c.outputs, c.inputs});
  return linear;
}

void run(benchmark::State& state, Lab& lab, const Case& c) {
  const std::vector<float> x = normal_values(std::size_t(c.rows) * c.inputs);
  std::vector<float> y(std::size_t(c.rows) * c.outputs);
  Linear linear = next(lab, c);
  const double each = time_each(state, [&] {
    if (c.in_memory) linear = next(lab, c);
    // The op that is nothing but a product: the head, without its norm.
    lab.backend().head({c.read, x.data(), c.rows, {}, &linear, y.data()});
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

void add_all(Lab& lab, bool in_memory, Shape shape) {
  for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth}) {
    add(lab, {in_memory, read, DType::kBF16, shape.outputs, shape.inputs, 1});
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int rows : {1, 2, 3, 5, 8}) {
      add(lab, {in_memory, WeightRead::kTarget, dtype, shape.outputs, shape.inputs, rows});
    }
  }
}

}  // namespace

void register_linear(Lab& lab) {
  for (const Shape shape : {Shape{4096, 4096}, {14336, 4096}}) add_all(lab, true, shape);
  for (const Shape shape : {Shape{512, 512}, {1408, 512}, {512, 1408}, {8192, 512}}) {
    add_all(lab, false, shape);
  }
}

}  // namespace quantspec
