// What the op tests of all backends share: random data, guarded memory, comparisons, a KV cache in
// miniature. Every op test runs over test_backends() and compares with the reference.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/dtype.h"
#include "base/random.h"
#include "quant/encode_row.h"
#include "quant/test_support.h"

namespace quantspec {

using Floats = std::vector<float>;

// "reference", every instruction set of the cpu backend that this machine can run, and "cuda" where
// there is a GPU.
std::vector<std::string> test_backends();
std::unique_ptr<Backend> make_test_backend(const std::string& name, int num_threads);

// How far a backend may be from the reference: the largest error in units of the output's rms, or
// the NMSE. The numbers here are for reference and cpu.
struct Tolerances {
  // Full-precision weights: they are read as they are and sums are fp32, so only the order of up to
  // 12420 additions differs. Measured: 7e-6.
  double decode = 2e-5;
  // The same in prefill, where GEMMs may round activations to the weights' type, or both to bf16.
  enum { kNothing, kToWeights, kToBf16 } prefill_rounds = kNothing;
  double prefill(DType dtype) const {
    // Off by 2^-11 or 2^-8 of themselves at most, a third of that in rms, of which the worst of
    // thousands of outputs is 4 to 5 times; more if weights are as well. Simulated: 1.1e-3, 8e-3.
    if (prefill_rounds == kToBf16) return dtype == DType::kBF16 ? 1e-2 : 1.5e-2;
    if (prefill_rounds == kNothing || dtype == DType::kF32) return 2e-5;
    return dtype == DType::kF16 ? 1.5e-3 : 1e-2;
  }
  // The same of codes, which are then rounded to bf16, as activations are.
  double prefill_of_codes() const { return prefill_rounds == kNothing ? 2e-5 : 2e-2; }
  // Quantized weights may meet activations that the backend rounds to 8 bits: a step of max/127 on
  // normal data is an NMSE of (3.5 / 127)^2 / 12 = 6e-5, more where a group has an outlier.
  // Measured: 1.3e-4.
  double planes_nmse = 2e-4;
  // Layout of planes: their bytes over those of codes and scales.
  double plane_padding = 1.0;
  // The target pass reads codes and fp16 values exactly; queries and probabilities that meet codes
  // may be rounded to 15 bits of their largest per page. Measured: 9e-4.
  double target = 2e-3;
  // The same as an NMSE. Measured: 1.7e-8.
  double target_nmse = 4e-8;
  // Drafts: both backends read equal values, but queries and probabilities may be rounded to 8 bits
  // per page. Measured: 2.9e-4 at worst. That is fifty times below what 4-bit codes cost (about
  // 2e-2).
  double draft_nmse = 5e-4;
  // Rounds nothing but fp32 sums of a few hundred terms.
  double prefill_attention = 2e-5;
  // The mass of a page, relative to itself: where rounding a query to 15 bits of its largest
  // changes nothing (measured: 3e-7), and where it is rounded to 15 or to 8 bits (4e-5 and 0.008).
  double exact_mass = 1e-6;
  double target_mass = 1e-4;
  double draft_mass = 0.02;
  // The sum of all probabilities, of which one part is an output.
  double whole = 1e-5;
};

inline Tolerances tolerances_of(const std::string& backend) {
  if (backend == "avx512bf16" || backend == "amxbf16") {
    // Attention is of bf16 too. The first rows average few values, so that their errors are several
    // times the rms of those that average many. Measured: 3.2e-2.
    return {.prefill_rounds = Tolerances::kToBf16, .prefill_attention = 6e-2};
  }
  if (backend != "cuda") return {};
  return {
      // Activations keep 16 bits of themselves. Simulated: 1.2e-5 of one projection, 1e-4 of the
      // product of two.
      .decode = 1e-4,
      .prefill_rounds = Tolerances::kToWeights,
      // Whole tiles.
      .plane_padding = 1.05,
      // Queries and probabilities meet codes as fp16. Measured on an H200: 6.6e-3, of 128 heads
      // that of one led by few keys (the same roundings modelled in fp64: 7.6e-3), at an NMSE of
      // 2.6e-7; the greatest NMSE is 1.1e-6, of lists of few pages.
      .target = 8e-3,
      .target_nmse = 2e-6,
      // Queries and probabilities are rounded to fp16. The first rows average few values, so that
      // their errors are several times the rms of those that average many.
      .prefill_attention = 5e-3,
      // A query is rounded to fp16 in units that depend on a page's scales, so no data is exact:
      // scores of up to 10 are off by a few parts in 10^4.
      .exact_mass = 2e-3,
      .target_mass = 2e-3,
      // The output's probabilities are fp16, those of the mass are not.
      .whole = 3e-4,
  };
}

class OpTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make_test_backend(GetParam(), 3);
  std::unique_ptr<Backend> reference_ = make_test_backend("reference", 2);
  const Tolerances tolerances_ = tolerances_of(GetParam());
};

#define QUANTSPEC_FOR_ALL_BACKENDS(suite)                                                  \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(quantspec::test_backends()), \
                           [](const testing::TestParamInfo<std::string>& i) { return i.param; })

// --- data ----------------------------------------------------------------------------------------

// Normal values (sum of 12 uniforms), the same for a seed on every machine.
inline Floats normal_floats(std::size_t count, std::uint64_t seed, float deviation = 1.0f) {
  const CounterRng rng(seed);
  Floats x(count);
  for (std::size_t i = 0; i < count; ++i) {
    float sum = -6.0f;
    for (std::uint32_t block = 0; block < 3; ++block) {
      for (const std::uint32_t word : rng.block(std::int64_t(i), RandomStream::kSample, block)) {
        sum += CounterRng::to_unit(word);
      }
    }
    x[i] = sum * deviation;
  }
  return x;
}

inline float round_to_half(float x) { return f16_to_f32(f32_to_f16(x)); }

// Values that survive storage as fp16, so that two backends see the same K and V.
inline Floats half_floats(std::size_t count, std::uint64_t seed, float deviation = 1.0f) {
  Floats x = normal_floats(count, seed, deviation);
  std::transform(x.begin(), x.end(), x.begin(), round_to_half);
  return x;
}

// Memory of a backend between guard bands. Check intact() after the op. data() is the backend's.
template <typename T>
class Guarded {
 public:
  Guarded(Backend& backend, std::size_t count)
      : backend_(backend),
        count_(count),
        buffer_(backend.allocate(count * sizeof(T) + 2 * kGuard)) {
    const std::vector<std::byte> pattern(buffer_.size(), kPattern);
    backend.upload(buffer_.data(), pattern.data(), pattern.size());
  }
  Guarded(Backend& backend, const std::vector<T>& values) : Guarded(backend, values.size()) {
    backend.upload(data(), values.data(), values.size() * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(buffer_.data() + kGuard); }
  const T* data() const { return reinterpret_cast<const T*>(buffer_.data() + kGuard); }
  std::size_t size() const { return count_; }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    backend_.download(values.data(), data(), count_ * sizeof(T));
    return values;
  }
  bool intact() const {
    std::vector<std::byte> bytes(buffer_.size());
    backend_.download(bytes.data(), buffer_.data(), bytes.size());
    const auto untouched = [](std::byte b) { return b == kPattern; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuard, untouched) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), untouched);
  }

 private:
  static constexpr std::size_t kGuard = 256;  // a multiple of what kernels may want aligned
  static constexpr std::byte kPattern{0xa5};
  Backend& backend_;
  std::size_t count_;
  Buffer buffer_;
};

// A matrix of a checkpoint, one byte off alignment as safetensors may leave it.
class HostMatrix {
 public:
  HostMatrix(int rows, int cols, DType dtype, std::uint64_t seed)
      : rows_(rows), cols_(cols), dtype_(dtype) {
    const Floats x = normal_floats(static_cast<std::size_t>(rows) * cols, seed,
                                   1.0f / std::sqrt(static_cast<float>(cols)));
    bytes_.resize(1 + x.size() * size_of(dtype));
    for (std::size_t i = 0; i < x.size(); ++i) store(i, x[i]);
  }
  TensorView view() const { return {bytes_.data() + 1, dtype_, rows_, cols_}; }
  float at(int row, int col) const {
    return load_f32(view().data, dtype_, static_cast<std::size_t>(row) * cols_ + col);
  }
  void set(int row, int col, float value) {
    store(static_cast<std::size_t>(row) * cols_ + col, value);
  }

 private:
  void store(std::size_t i, float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto half =
        dtype_ == DType::kF16 ? f32_to_f16(value) : static_cast<std::uint16_t>(word >> 16);
    unsigned char* to = bytes_.data() + 1 + i * size_of(dtype_);
    if (dtype_ == DType::kF32) {
      std::memcpy(to, &value, 4);
    } else {
      std::memcpy(to, &half, 2);
    }
  }

  int rows_, cols_;
  DType dtype_;
  std::vector<unsigned char> bytes_;
};

// The codes of a matrix in groups of 64 or 128 inputs, by the codec.
class TestCodes {
 public:
  TestCodes(const HostMatrix& matrix, int group)
      : rows_(matrix.view().rows), cols_(matrix.view().cols), group_(group) {
    const WeightFormat format = sliced_format(group);
    const int groups = format.groups(cols_);
    codes_.resize(static_cast<std::size_t>(rows_) * cols_);
    scales_.resize(static_cast<std::size_t>(rows_) * groups);
    Floats row(cols_);
    for (int r = 0; r < rows_; ++r) {
      for (int c = 0; c < cols_; ++c) row[c] = matrix.at(r, c);
      encode_row(format, cols_, row.data(),
                 {&codes_[static_cast<std::size_t>(r) * cols_],
                  &scales_[static_cast<std::size_t>(r) * groups], nullptr, nullptr});
    }
  }
  CodedMatrix get() const {
    return {sliced_format(group_), rows_, cols_, [this](int row, const RowCodes& out) {
              const int groups = sliced_format(group_).groups(cols_);
              std::copy_n(&codes_[static_cast<std::size_t>(row) * cols_], cols_, out.codes);
              std::copy_n(&scales_[static_cast<std::size_t>(row) * groups], groups, out.scales);
            }};
  }
  std::uint8_t code(int row, int col) const {
    return codes_[static_cast<std::size_t>(row) * cols_ + col];
  }
  GroupScale scale(int row, int col) const {
    return scales_[static_cast<std::size_t>(row) * sliced_format(group_).groups(cols_) +
                   col / group_];
  }

 private:
  int rows_, cols_, group_;
  std::vector<std::uint8_t> codes_;
  std::vector<GroupScale> scales_;
};

// A matrix where a backend reads it: in zeroed memory, as allocate() gives it, or where it was.
class PlacedMatrix {
 public:
  PlacedMatrix(Backend& backend, const HostMatrix& matrix)
      : matrix_(matrix),
        memory_(backend, std::vector<std::byte>(backend.matrix_bytes(
                             matrix_.view().rows, matrix_.view().cols, matrix_.view().dtype))),
        view_(backend.place_matrix(matrix_.view(), memory_.data())) {
    EXPECT_TRUE(memory_.intact());
  }
  const Matrix& view() const { return view_; }

 private:
  HostMatrix matrix_;
  Guarded<std::byte> memory_;
  Matrix view_;
};

// A Linear with its planes, as one backend keeps them: made by it, or, in groups of another size,
// imported. Or of planes alone, which target and draft read.
class TestLinear {
 public:
  TestLinear(Backend& backend, const HostMatrix& matrix, const Floats& bias = {},
             int group = kWeightGroup)
      : matrix_(std::in_place, backend, matrix),
        format_(sliced_format(group)),
        bytes_(backend.plane_bytes(matrix.view().rows, matrix.view().cols, format_)),
        upper_(backend, bytes_.upper),
        lower_(backend, bytes_.lower),
        bias_(backend, bias) {
    if (group == kWeightGroup) {
      backend.make_planes(matrix_->view(), format_, upper_.data(), lower_.data());
    } else {
      backend.import_planes(TestCodes(matrix, group).get(), upper_.data(), lower_.data());
    }
    EXPECT_TRUE(upper_.intact() && lower_.intact());
    const Matrix& target = matrix_->view();
    linear_ = {target,
               {format_, target.rows, target.cols, upper_.data(), lower_.data()},
               bias.empty() ? nullptr : bias_.data()};
  }
  TestLinear(Backend& backend, const CodedMatrix& coded, const Floats& bias = {})
      : format_(coded.format),
        bytes_(backend.plane_bytes(coded.rows, coded.cols, format_)),
        upper_(backend, bytes_.upper),
        lower_(backend, bytes_.lower),
        bias_(backend, bias) {
    backend.import_planes(coded, upper_.data(), bytes_.lower == 0 ? nullptr : lower_.data());
    EXPECT_TRUE(upper_.intact() && lower_.intact());
    linear_.target = {format_, coded.rows, coded.cols, upper_.data(),
                      bytes_.lower == 0 ? nullptr : lower_.data()};
    linear_.draft = linear_.target;
    linear_.bias = bias.empty() ? nullptr : bias_.data();
  }
  // Random elements, or random codes.
  static TestLinear random(Backend& backend, const WeightFormat& format, int outputs, int inputs,
                           unsigned seed, const Floats& bias = {}) {
    if (format.dense()) return {backend, HostMatrix(outputs, inputs, format.dtype, seed), bias};
    return {backend, RandomCodes(format, outputs, inputs, seed).matrix(), bias};
  }
  const Linear* get() const { return &linear_; }
  std::vector<std::byte> upper() const { return upper_.values(); }
  std::vector<std::byte> lower() const { return lower_.values(); }

 private:
  std::optional<PlacedMatrix> matrix_;  // of elements
  WeightFormat format_;
  PlaneBytes bytes_;
  Guarded<std::byte> upper_, lower_;
  Guarded<float> bias_;
  Linear linear_;
};

// --- comparisons ---------------------------------------------------------------------------------

// Mean squared error over mean square, of the finite values.
inline double nmse(const Floats& actual, const Floats& expected) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) continue;
    error += std::pow(double{actual[i]} - expected[i], 2);
    power += std::pow(double{expected[i]}, 2);
  }
  return power == 0 ? error : error / power;
}

// The largest error, relative to the root mean square of what is expected.
inline double max_error(const Floats& actual, const Floats& expected) {
  double worst = 0, power = 0;
  int finite = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) continue;
    worst = std::max(worst, std::abs(double{actual[i]} - expected[i]));
    power += std::pow(double{expected[i]}, 2);
    ++finite;
  }
  return power == 0 ? worst : worst / std::sqrt(power / finite);
}

// NaN and infinities of equal sign in equal places.
inline testing::AssertionResult same_special(const Floats& actual, const Floats& expected) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool same = std::isnan(expected[i])   ? std::isnan(actual[i])
                      : std::isinf(expected[i]) ? actual[i] == expected[i]
                                                : std::isfinite(actual[i]);
    if (!same) {
      return testing::AssertionFailure()
             << "element " << i << " is " << actual[i] << ", expected " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult near(const Floats& actual, const Floats& expected,
                                     double tolerance) {
  if (const auto special = same_special(actual, expected); !special) return special;
  const double error = max_error(actual, expected);
  if (error <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "error " << error << " of the output's rms, not " << tolerance << " at most (NMSE "
         << nmse(actual, expected) << ")";
}

inline testing::AssertionResult near_nmse(const Floats& actual, const Floats& expected,
                                          double bound) {
  if (const auto special = same_special(actual, expected); !special) return special;
  const double error = nmse(actual, expected);
  if (error <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "NMSE " << error << ", not " << bound << " at most";
}

// What drafts and targets read of pages: both by the NMSE, a target by its largest error, too.
inline testing::AssertionResult attention_near(const Floats& actual, const Floats& expected,
                                               KvRead read, const Tolerances& tolerances) {
  if (read == KvRead::kUpper) return near_nmse(actual, expected, tolerances.draft_nmse);
  const auto by_nmse = near_nmse(actual, expected, tolerances.target_nmse);
  return by_nmse ? near(actual, expected, tolerances.target) : by_nmse;
}

inline bool same_bits(const float* a, const float* b, std::size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(float)) == 0;
}

// --- KV ------------------------------------------------------------------------------------------

// Guarded FullKv of one layer. It starts as NaN in every slot (all bits are set, in whatever type):
// what was never written must not be read.
class TestFullKv {
 public:
  TestFullKv(Backend& backend, const KvShape& shape, int capacity)
      : backend_(backend),
        shape_(shape),
        memory_(backend,
                std::vector<std::byte>(backend.full_kv_bytes(shape, capacity), std::byte{0xff})),
        kv_{memory_.data(), capacity} {}
  // [count, head_dim] each.
  void write(int kv_head, int position, const float* keys, const float* values, int count = 1) {
    backend_.write_full_kv(shape_, kv_, kv_head, position, count, keys, values);
  }
  // Key then value.
  Floats read(int kv_head, int position) const {
    Floats kv(2 * shape_.head_dim);
    backend_.read_full_kv(shape_, kv_, kv_head, position, 1, kv.data(),
                          kv.data() + shape_.head_dim);
    return kv;
  }
  FullKv get() const { return kv_; }
  bool intact() const { return memory_.intact(); }

 private:
  Backend& backend_;
  KvShape shape_;
  Guarded<std::byte> memory_;
  FullKv kv_;
};

// Guarded pages of all layers.
class TestPages {
 public:
  TestPages(Backend& backend, const KvShape& shape, int count) {
    for (int i = 0; i < count; ++i) {
      upper_.push_back(
          std::make_unique<Guarded<std::byte>>(backend, shape.units() * shape.upper_unit_bytes()));
      lower_.push_back(
          std::make_unique<Guarded<std::byte>>(backend, shape.units() * shape.lower_unit_bytes()));
      pages_.push_back({upper_.back()->data(), lower_.back()->data()});
    }
    table_ = std::make_unique<Guarded<PagePlanes>>(backend, pages_);
  }
  // The pages, for the host.
  const std::vector<PagePlanes>& list() const { return pages_; }
  // The same as ops read them.
  std::span<const PagePlanes> get() const { return {table_->data(), pages_.size()}; }
  bool intact() const {
    const auto ok = [](const auto& memory) { return memory->intact(); };
    return std::all_of(upper_.begin(), upper_.end(), ok) &&
           std::all_of(lower_.begin(), lower_.end(), ok) && table_->intact();
  }

 private:
  std::vector<std::unique_ptr<Guarded<std::byte>>> upper_, lower_;
  std::vector<PagePlanes> pages_;
  std::unique_ptr<Guarded<PagePlanes>> table_;
};

// Makes sequences rows of rounds, which say what first_position says: lanes of a batch, bound to
// the sequences' kv.
class TestLanes {
 public:
  TestLanes(Backend& backend, std::vector<SequenceRows>& sequences, bool verifies,
            const KvShape& shape = {1, 1, 64, 32})
      : rounds_(backend, at(sequences, verifies)) {
    std::vector<RoundLane> lanes;
    std::vector<LaneKey> keys;
    static std::uint64_t last = 0;
    for (SequenceRows& rows : sequences) {
      const int index = static_cast<int>(lanes.size());
      RoundLane lane{.draft_len = verifies ? rows.num_rows - 1 : kDepth + rows.num_rows,
                     .first_row = rows.first_row};
      lane.at.tokens = const_cast<TokenId*>(rows.tokens) - rows.first_token;
      lane.at.round = rounds_.data() + index;
      lanes.push_back(lane);
      keys.push_back({++last});
      rows.lane = index;
      rows.verifies = verifies;
      rows.drafted = verifies ? 0 : kDepth;
    }
    backend.begin_batch(lanes);
    std::vector<KvView> views;
    backend.bind_lanes(shape, keys, [&](int lane, bool) {
      views.assign(shape.num_layers, {});
      views.at(sequences[lane].kv.layer) = sequences[lane].kv;
      return std::span<const KvView>(views);
    });
  }
  bool intact() const { return rounds_.intact(); }

 private:
  static constexpr int kDepth = 2;
  static std::vector<Round> at(const std::vector<SequenceRows>& sequences, bool verifies) {
    std::vector<Round> rounds;
    for (const SequenceRows& rows : sequences) {
      const int drafted = verifies ? 3 : std::min(rows.first_position, kDepth);
      const int length = rows.first_position + 1 - (verifies ? 0 : drafted);
      rounds.push_back({.length = length, .drafted = drafted});
    }
    return rounds;
  }
  Guarded<Round> rounds_;
};

// The same, and begins their pass: of drafts where each has a row, unless `verifies`.
class TestRounds {
 public:
  TestRounds(Backend& backend, std::vector<SequenceRows>& sequences, const KvShape& shape,
             bool verifies)
      : tokens_(backend,
                std::vector<TokenId>(sequences.back().first_row + sequences.back().num_rows)),
        table_(backend, HostMatrix(1, 16, DType::kF16, 1)),
        out_(backend, 16 * tokens_.size()) {
    for (SequenceRows& rows : sequences) {
      rows.tokens = tokens_.data() + rows.first_row;
      rows.first_token = rows.first_position;
      verifies |= rows.num_rows != 1;
    }
    lanes_.emplace(backend, sequences, verifies, shape);
    backend.embed({.sequences = sequences,
                   .table = table_.view(),
                   .out = out_.data(),
                   .page_size = shape.page_size,
                   .num_rows = static_cast<int>(tokens_.size())});
  }
  bool intact() const { return lanes_->intact() && tokens_.intact() && out_.intact(); }

 private:
  Guarded<TokenId> tokens_;
  PlacedMatrix table_;
  Guarded<float> out_;
  std::optional<TestLanes> lanes_;
};

// A unit in canonical order.
struct CanonicalUnit {
  explicit CanonicalUnit(const KvShape& shape)
      : upper(shape.upper_unit_bytes()), lower(shape.lower_unit_bytes()) {}
  std::vector<std::byte> upper, lower;
  bool operator==(const CanonicalUnit&) const = default;
};

inline CanonicalUnit encoded(const KvShape& shape, const Floats& keys, const Floats& values) {
  CanonicalUnit unit(shape);
  encode_unit(shape, keys.data(), values.data(), unit.upper.data(), unit.lower.data());
  return unit;
}

}  // namespace quantspec
