// Matrix products at the rows that decoding has, through the ops that a layer is made of, over
// weights of 16 bits, over their upper plane (4 bits) and over both (8), and over codes of GGUF's
// types: the shapes of Llama-2-7B and Llama-3.1-8B.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "apps/bench/gpu_lab.h"
#include "backend/params/pass.h"
#include "base/error.h"
#include "gguf/blocks.h"

namespace quantspec {

namespace {

enum class Op { kQkv, kAdd, kGateUp, kHead };

struct Case {
  std::string name;
  Op op;
  int outputs, inputs;  // of all matrices of the op together

  // kQkv: K and V have the same heads, Q has kHeads.
  int kv_heads() const { return (outputs / kHeadDim - kHeads) / 2; }
  // Outputs of each matrix.
  std::vector<int> matrices() const {
    if (op == Op::kAdd || op == Op::kHead) return {outputs};
    if (op == Op::kGateUp) return {outputs / 2, outputs / 2};
    return {kHeads * kHeadDim, kv_heads() * kHeadDim, kv_heads() * kHeadDim};
  }
  // Floats of a row of the result.
  int result() const { return matrices()[0]; }
};

const Case kCases[] = {
    {"7b qkv", Op::kQkv, 12288, 4096},
    {"8b qkv", Op::kQkv, 6144, 4096},
    {"o", Op::kAdd, 4096, 4096},
    {"7b gate-up", Op::kGateUp, 22016, 4096},
    {"8b gate-up", Op::kGateUp, 28672, 4096},
    {"7b down", Op::kAdd, 4096, 11008},
    {"8b down", Op::kAdd, 4096, 14336},
    {"7b head", Op::kHead, 32000, 4096},
    {"8b head", Op::kHead, 128256, 4096},
};
// How weights are kept and read.
struct Reading {
  const char* name;
  WeightRead read;
  DType dtype;                        // of the full matrix
  double tolerance;                   // of relative errors
  bool everywhere;                    // else of the 7B shape alone
  std::optional<GgmlType> type = {};  // of a file, which has codes instead of the full matrix
};
constexpr Reading kReadings[] = {
    {"4-bit", WeightRead::kUpper, DType::kBF16, 1e-2, true},
    {"8-bit", WeightRead::kBoth, DType::kBF16, 2e-3, false},
    {"bf16", WeightRead::kTarget, DType::kBF16, 2e-3, true},
    {"fp16", WeightRead::kTarget, DType::kF16, 2e-3, false},
    {"Q4_K", WeightRead::kTarget, DType::kBF16, 2e-3, false, GgmlType::kQ4_K},
    {"Q6_K", WeightRead::kTarget, DType::kBF16, 2e-3, false, GgmlType::kQ6_K},
    {"Q8_0", WeightRead::kTarget, DType::kBF16, 2e-3, false, GgmlType::kQ8_0},
};
constexpr int kReferenceRows = 17;
constexpr int kCheckedOutputs = kHeadDim;  // the last ones of each matrix
constexpr int kPosition = 512;             // of the first row
constexpr int kRing = 256;                 // slots to which K and V are appended

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::vector<std::uint16_t> to_fp16(std::span<const std::uint16_t> bf16) {
  std::vector<std::uint16_t> fp16(bf16.size());
  std::ranges::transform(bf16, fp16.begin(),
                         [](auto bits) { return f32_to_f16(bf16_to_f32(bits)); });
  return fp16;
}

// Rows of a file's matrix, from `first` on. The values' bits are its blocks: any bits are codes,
// and these are usual scales.
CodedMatrix coded_matrix(GgmlType type, const std::uint16_t* values, int first, int rows,
                         int cols) {
  const WeightFormat format = format_of(type, "gpu_bench");
  const auto read = [=, bytes = row_bytes(type, cols)](int row, const RowCodes& out) {
    const auto* blocks = reinterpret_cast<const std::byte*>(values) + (first + row) * bytes;
    read_row(type, {blocks, bytes}, cols, format, out);
  };
  return {format, rows, cols, read};
}

// The planes of a matrix that are read, in memory of the backend; where the lower one begins.
struct Planes {
  Buffer memory;
  std::size_t lower = 0;

  Planes(Backend& backend, const CodedMatrix& coded) {
    const PlaneBytes bytes = backend.plane_bytes(coded.rows, coded.cols, coded.format);
    lower = aligned(bytes.upper);
    memory = backend.allocate(lower + bytes.lower);
    backend.import_planes(coded, memory.data(), bytes.lower > 0 ? memory.data() + lower : nullptr);
    backend.synchronize();
  }
  Planes(Backend& backend, const Matrix& full, WeightRead read) {
    const PlaneBytes bytes = backend.plane_bytes(full.rows, full.cols, sliced_format());
    lower = aligned(bytes.upper);
    const bool both = read == WeightRead::kBoth;
    memory = backend.allocate(both ? lower + bytes.lower : bytes.upper);
    backend.make_planes(full, sliced_format(), memory.data(),
                        both ? memory.data() + lower : nullptr);
    backend.synchronize();  // the matrix may go
  }
};

// Where an op finds a matrix, or those planes of it that it reads.
Linear linear_at(const std::byte* at, const Matrix& shape, WeightRead read, std::size_t lower) {
  Linear linear{.target = shape};
  if (!shape.format.dense()) {  // the one store of target and drafts
    linear.target.data = at;
    if (shape.format.lower_bits() > 0) linear.target.lower = at + lower;
    linear.draft = linear.target;
    return linear;
  }
  linear.target.data = read == WeightRead::kTarget ? at : nullptr;
  if (read == WeightRead::kTarget) return linear;
  linear.draft = {sliced_format(), shape.rows, shape.cols, at,
                  read == WeightRead::kBoth ? at + lower : nullptr};
  return linear;
}

// Copies of the matrices of an op, to be read in one way.
class Weights {
 public:
  Weights(GpuLab& lab, const Case& c, const Reading& reading, const std::uint16_t* values)
      : lab_(lab), read_(reading.read) {
    int first = 0;
    for (const int outputs : c.matrices()) {
      if (reading.type) {
        place(coded_matrix(*reading.type, values, first, outputs, c.inputs));
      } else {
        place({values + std::size_t(first) * c.inputs, reading.dtype, outputs, c.inputs});
      }
      first += outputs;
    }
    make_copies();
  }

  // Matrix m of copy i.
  const Linear& get(int i, int m) const {
    return linears_[i % copies_ * static_cast<int>(originals_.size()) + m];
  }
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  void add(const Matrix& shape, Buffer memory, std::size_t lower) {
    shapes_.push_back(shape);
    lower_.push_back(lower);
    bytes_ += memory.size();
    originals_.push_back(std::move(memory));
  }

  void place(const CodedMatrix& coded) {
    Planes planes(lab_.backend(), coded);
    add({coded.format, coded.rows, coded.cols}, std::move(planes.memory), planes.lower);
  }

  void place(const TensorView& host) {
    Backend& backend = lab_.backend();
    const std::size_t bytes = backend.matrix_bytes(host.rows, host.cols, host.dtype);
    Buffer memory = backend.allocate(bytes > 0 ? bytes : std::size_t{2} * host.rows * host.cols);
    Matrix full = dense(host);
    full.data = memory.data();
    if (bytes > 0) {
      full = backend.place_matrix(host, memory.data());
    } else {  // this backend reads matrices as they are
      backend.upload(memory.data(), host.data, memory.size());
    }
    if (read_ == WeightRead::kTarget) return add(full, std::move(memory), 0);
    Planes planes(backend, full, read_);
    add(full, std::move(planes.memory), planes.lower);
  }

  void make_copies() {
    copies_ = copies_beyond_l2(bytes_);
    std::size_t size = 0;
    for (const Buffer& original : originals_) size += aligned(original.size());
    memory_ = lab_.backend().allocate(copies_ * size);
    std::byte* at = memory_.data();
    for (int copy = 0; copy < copies_; ++copy) {
      for (std::size_t m = 0; m < originals_.size(); ++m) {
        lab_.backend().copy(at, originals_[m].data(), originals_[m].size());
        linears_.push_back(linear_at(at, shapes_[m], read_, lower_[m]));
        at += aligned(originals_[m].size());
      }
    }
  }

  GpuLab& lab_;
  WeightRead read_;
  int copies_ = 0;
  std::size_t bytes_ = 0;
  std::vector<Matrix> shapes_;
  std::vector<std::size_t> lower_;  // where a matrix' lower plane begins
  std::vector<Buffer> originals_;
  Buffer memory_;
  std::vector<Linear> linears_;  // [copies_, matrices]
};

// What an op takes beside its weights, in the memory of one backend.
struct Operands {
  const float* x;     // [kMostRows, inputs]
  const float* norm;  // [inputs]
  const float* cos;   // [kMostRows, kHeadDim / 2]
  const float* sin;   // [kMostRows, kHeadDim / 2]
  std::byte* ring;    // of kRing slots
  float* out;         // [kMostRows, result]
};

// matrix(m): the m-th matrix. Heads and outputs are those of the matrices.
template <typename F>
void run(Backend& backend, Op op, WeightRead read, int rows, const Operands& on, OpOrder order,
         const F& matrix) {
  const Norm norm{on.norm, 1e-5f};
  const Linear& first = matrix(0);
  if (op == Op::kAdd) {
    backend.add_linear({Phase::kDecode, read, on.x, rows, &first, on.out, order});
  } else if (op == Op::kHead) {
    backend.head({read, on.x, rows, norm, &first, on.out, order});
  } else if (op == Op::kGateUp) {
    backend.gate_up({Phase::kDecode, read, on.x, rows, norm, &first, &matrix(1), on.out, order});
  } else {
    const KvShape shape{1, matrix(1).outputs() / kHeadDim, kHeadDim, kRing / 2};
    const SequenceRows sequence{0, rows, kPosition, {.full = {on.ring, kRing}, .first_full = 384}};
    backend.qkv({.phase = Phase::kDecode,
                 .weights = read,
                 .num_heads = first.outputs() / kHeadDim,
                 .shape = shape,
                 .x = on.x,
                 .num_rows = rows,
                 .norm = norm,
                 .q = &first,
                 .k = &matrix(1),
                 .v = &matrix(2),
                 .q_norm = {},
                 .k_norm = {},
                 .cos = on.cos,
                 .sin = on.sin,
                 .q_out = on.out,
                 .sequences = {&sequence, 1},
                 .order = order});
  }
}

// The operands on the host, and where the backend has them.
class Bench {
 public:
  Bench(GpuLab& lab, const Case& c)
      : lab_(lab),
        case_(c),
        values_(lab.bf16(std::size_t(c.outputs) * c.inputs, 1 / std::sqrt(float(c.inputs)))),
        x_(lab.floats(std::size_t(kMostRows) * c.inputs)),
        norm_(lab.floats(c.inputs)),
        cos_(kMostRows * kHeadDim / 2),
        sin_(cos_.size()) {
    for (std::size_t i = 0; i < cos_.size(); ++i) {
      cos_[i] = std::cos(0.1f * static_cast<float>(i));
      sin_[i] = std::sin(0.1f * static_cast<float>(i));
    }
    for (const std::vector<float>* values : {&x_, &norm_, &cos_, &sin_}) {
      device_.push_back(lab.upload(*values));
    }
    device_.push_back(lab.backend().allocate(lab.backend().full_kv_bytes(kv_shape(), kRing)));
  }

  void measure(const Reading& reading, const GpuBenchOptions& options, Results& results) {
    const bool fp16 = reading.dtype == DType::kF16;
    const std::vector<std::uint16_t> converted =
        fp16 ? to_fp16(values_) : std::vector<std::uint16_t>();
    const std::uint16_t* values = fp16 ? converted.data() : values_.data();
    const Weights weights(lab_, case_, reading, values);
    const WeightRead read = reading.read;
    check_rows(reading, weights, values, options.rows, results);
    for (const int rows : options.rows) {
      const Operands on = operands();
      const Times times = lab_.time([&](int i) {
        run(lab_.backend(), case_.op, read, rows, on, OpOrder::kOverlaps,
            [&](int m) -> const Linear& { return weights.get(i, m); });
      });
      results.add({.group = "linear",
                   .name = fmt::format("{} {}x{} {}", case_.name, case_.outputs, case_.inputs,
                                       reading.name),
                   .rows = rows,
                   .times = times,
                   .bytes = weights.bytes(),
                   .baseline = options.baselines.linear(case_.outputs, case_.inputs, rows)});
    }
  }

 private:
  KvShape kv_shape() const {
    return {1, std::max(1, case_.op == Op::kQkv ? case_.kv_heads() : 1), kHeadDim, kRing / 2};
  }
  Operands operands() {
    return {device_[0].as<float>(), device_[1].as<float>(), device_[2].as<float>(),
            device_[3].as<float>(), device_[4].data(),      out_.as<float>()};
  }

  std::vector<float> result(WeightRead read, const Weights& weights, int rows) {
    const std::size_t floats = std::size_t(kMostRows) * case_.result();
    out_ = case_.op == Op::kAdd ? lab_.upload(std::vector<float>(floats)) : lab_.poisoned(floats);
    run(lab_.backend(), case_.op, read, rows, operands(), OpOrder::kAfter,
        [&](int m) -> const Linear& { return weights.get(0, m); });
    return lab_.download(out_, std::size_t(rows) * case_.result());
  }

  // The last outputs of every matrix, against the reference; and every row count's bits against
  // those of one row.
  void check_rows(const Reading& reading, const Weights& weights, const std::uint16_t* values,
                  const std::vector<int>& row_counts, Results& results) {
    const WeightRead read = reading.read;
    const std::string name = fmt::format("{} {}", case_.name, reading.name);
    const std::vector<float> one = result(read, weights, 1);
    const std::vector<float> out = result(read, weights, kReferenceRows);
    for (const int rows : row_counts) {
      const std::vector<float> many = result(read, weights, rows);
      results.add_check(fmt::format("{}, the bits of a row alone and of {}", name, rows),
                        bit_error(one, std::span(many).first(one.size())), 0);
      const std::size_t common = std::min(out.size(), many.size());
      results.add_check(
          fmt::format("{}, the bits of rows of {} and of {}", name, kReferenceRows, rows),
          bit_error(std::span(out).first(common), std::span(many).first(common)), 0);
    }
    std::vector<float> last;
    for (int row = 0; row < kReferenceRows; ++row) {
      const auto end = out.begin() + std::ptrdiff_t(row + 1) * case_.result();
      last.insert(last.end(), end - kCheckedOutputs, end);
    }
    results.add_check(name, relative_error(last, reference(reading, values)), reading.tolerance);
  }

  // [kReferenceRows, kCheckedOutputs], by the reference, from the last rows of every matrix.
  std::vector<float> reference(const Reading& reading, const std::uint16_t* values) {
    Backend& reference = lab_.reference();
    std::vector<Linear> linears;
    std::vector<Planes> planes;
    int end = 0;
    for (const int outputs : case_.matrices()) {
      end += outputs;
      if (reading.type) {
        const CodedMatrix coded = coded_matrix(*reading.type, values, end - kCheckedOutputs,
                                               kCheckedOutputs, case_.inputs);
        planes.emplace_back(reference, coded);
        linears.push_back(linear_at(planes.back().memory.data(),
                                    {coded.format, coded.rows, coded.cols}, reading.read,
                                    planes.back().lower));
        continue;
      }
      const Matrix full = dense({values + std::size_t(end - kCheckedOutputs) * case_.inputs,
                                 reading.dtype, kCheckedOutputs, case_.inputs});
      if (reading.read == WeightRead::kTarget) {
        linears.push_back({.target = full});
      } else {
        planes.emplace_back(reference, full, reading.read);
        linears.push_back(
            linear_at(planes.back().memory.data(), full, reading.read, planes.back().lower));
      }
    }
    Buffer ring = reference.allocate(reference.full_kv_bytes(kv_shape(), kRing));
    std::vector<float> out(std::size_t(kReferenceRows) * kCheckedOutputs);
    run(reference, case_.op, reading.read, kReferenceRows,
        {x_.data(), norm_.data(), cos_.data(), sin_.data(), ring.data(), out.data()},
        OpOrder::kAfter, [&](int m) -> const Linear& { return linears[m]; });
    return out;
  }

  GpuLab& lab_;
  Case case_;
  std::vector<std::uint16_t> values_;  // [outputs, inputs], bf16
  std::vector<float> x_, norm_, cos_, sin_;
  std::vector<Buffer> device_;  // x, norm, cos, sin, ring
  Buffer out_;
};

}  // namespace

std::vector<std::string> weight_readings() {
  std::vector<std::string> names;
  for (const Reading& reading : kReadings) names.push_back(reading.name);
  return names;
}

std::vector<std::string> matrix_names() {
  std::vector<std::string> names;
  for (const Case& c : kCases) names.push_back(c.name);
  return names;
}

void measure_linear(GpuLab& lab, const GpuBenchOptions& options, Results& results) {
  const auto wanted = [&](const Reading& reading, const Case& c) {
    const auto& names = options.weights;
    return names.empty() ? reading.everywhere || !c.name.starts_with("8b")
                         : std::ranges::find(names, reading.name) != names.end();
  };
  for (const Case& c : kCases) {
    const auto& matrices = options.matrices;
    if (!matrices.empty() && std::ranges::find(matrices, c.name) == matrices.end()) continue;
    Bench bench(lab, c);
    for (const Reading& reading : kReadings) {
      if (wanted(reading, c)) bench.measure(reading, options, results);
    }
  }
}

}  // namespace quantspec
