// Passes of batches: products of up to 256 rows, of which each has the bits that it has alone.
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

class RowsOps : public OpTest {};

constexpr int kRowCounts[] = {8,  9,  12, 13, 17, 18, 31, 32,  33,  35,  43, 48,
                              49, 50, 64, 65, 80, 81, 96, 128, 129, 160, 256};
constexpr int kFewCounts[] = {8, 9, 13, 17, 18, 31, 32, 33, 200};
constexpr WeightRead kReads[] = {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget};
constexpr WeightFormat kQ4K{.bits = 4, .group = 32, .block = 256, .has_offset = true};
constexpr WeightFormat kQ5K{.bits = 5, .group = 32, .block = 256, .has_offset = true};
constexpr WeightFormat kQ6K{.bits = 6, .group = 16, .block = 256, .zero = 32};
constexpr WeightFormat kQ4{.bits = 4, .group = 32, .block = 32, .zero = 8};
constexpr WeightFormat kQ8{.bits = 8, .group = 32, .block = 32, .zero = 128};
constexpr WeightFormat kFormats[] = {dense_format(DType::kBF16),
                                     dense_format(DType::kF16),
                                     dense_format(DType::kF32),
                                     sliced_format(64),
                                     kQ4K,
                                     kQ5K,
                                     kQ6K,
                                     kQ4,
                                     kQ8};

// Not multiples of what kernels take at a time, fewer inputs than a sum has segments, and long
// rows. Of the last four a multiprocessor of an H100 takes a quarter, a half and the whole of a
// sum, of which no segment is empty; with more than 64 rows of bf16 a quarter, an eighth, a half
// and the whole.
struct Size {
  int inputs, outputs;
};
constexpr Size kSizes[] = {{80, 48},     {520, 131},   {1500, 33},   {8300, 20},
                           {2100, 4096}, {2100, 6144}, {2100, 8192}, {2100, 16888}};
bool has_bias(const Size& size) { return size.inputs == 520 || size.outputs == 16888; }

// run(x, rows, out): a pass of so many rows.
using Run = std::function<void(const float* x, int rows, float* out)>;

testing::AssertionResult have_the_bits_of_one(Backend& backend, std::span<const int> counts,
                                              const Size& size, float start, const Floats& inputs,
                                              const Run& run) {
  const int most = counts.back();
  const Guarded<float> x(backend, inputs);
  const Floats begin(std::size_t(most) * size.outputs, start);
  Guarded<float> alone(backend, begin);
  for (int row = 0; row < most; ++row) {
    run(x.data() + std::ptrdiff_t{row} * size.inputs, 1,
        alone.data() + std::ptrdiff_t{row} * size.outputs);
  }
  const Floats expected = alone.values();
  for (const int rows : counts) {
    Guarded<float> out(backend, begin);
    run(x.data(), rows, out.data());
    const Floats actual = out.values();
    const std::size_t count = std::size_t(rows) * size.outputs;
    const bool rest = std::equal(actual.begin() + std::ptrdiff_t(count), actual.end(),
                                 begin.begin() + std::ptrdiff_t(count));
    if (!out.intact() || !rest) return testing::AssertionFailure() << "wrote beyond " << rows;
    for (std::size_t i = 0; i < count; ++i) {
      if (same_bits(&actual[i], &expected[i], 1)) continue;
      return testing::AssertionFailure()
             << rows << " rows of " << size.inputs << " inputs: row " << i / size.outputs
             << ", output " << i % size.outputs << " is " << actual[i] << ", alone " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult have_the_bits_of_one(Backend& backend, std::span<const int> counts,
                                              const Size& size, float start, const Run& run) {
  return have_the_bits_of_one(backend, counts, size, start,
                              normal_floats(std::size_t(counts.back()) * size.inputs, 4), run);
}

// The reference and the processor have no kernels for many rows (kFewCounts), and are slow with
// large matrices.
bool leaves_out(const std::string& backend, const Size& size) {
  return backend != "cuda" && std::int64_t{size.inputs} * size.outputs > 100000;
}

TEST_P(RowsOps, ManyRowsHaveTheBitsOfOne) {
  const auto counts = GetParam() == "cuda" ? std::span<const int>(kRowCounts) : kFewCounts;
  for (const Size& size : kSizes) {
    if (leaves_out(GetParam(), size)) continue;
    const Floats bias = has_bias(size) ? normal_floats(size.outputs, 3) : Floats{};
    const Guarded<float> weight(*backend_, normal_floats(size.inputs, 20));
    const Norm norm{weight.data(), 1e-5f};
    for (const WeightFormat& format : kFormats) {
      const auto matrix = [&](unsigned seed) {
        return TestLinear::random(*backend_, format, size.outputs, size.inputs, seed, bias);
      };
      const TestLinear first = matrix(21), second = matrix(22);
      for (const WeightRead read : kReads) {
        if (format.dense() && format.dtype != DType::kBF16 && read != WeightRead::kTarget) continue;
        if (!format.dense() && !is_sliced(format) && read == WeightRead::kBoth)
          continue;  // kTarget
        EXPECT_TRUE(have_the_bits_of_one(
            *backend_, counts, size, 0.5f,
            [&](const float* x, int rows, float* out) {
              backend_->add_linear({Phase::kDecode, read, x, rows, first.get(), out});
            }))
            << "add, " << format.bits << " bits, read " << int(read);
        EXPECT_TRUE(have_the_bits_of_one(*backend_, counts, size, 0.0f,
                                         [&](const float* x, int rows, float* out) {
                                           backend_->gate_up({Phase::kDecode, read, x, rows, norm,
                                                              first.get(), second.get(), out});
                                         }))
            << "gate_up, " << format.bits << " bits, read " << int(read);
        EXPECT_TRUE(have_the_bits_of_one(*backend_, counts, size, 0.0f,
                                         [&](const float* x, int rows, float* out) {
                                           backend_->head({read, x, rows, norm, first.get(), out});
                                         }))
            << "head, " << format.bits << " bits, read " << int(read);
      }
    }
  }
}

// On a GPU a matrix so large has the kernel of many rows from 12 on.
TEST_P(RowsOps, RowsOfALargeMatrixHaveTheBitsOfOne) {
  if (GetParam() != "cuda") GTEST_SKIP() << "about the kernels of a GPU, and slow";
  constexpr int kCounts[] = {11, 12, 16};
  const Size size{4096, 16384};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const TestLinear linear =
        TestLinear::random(*backend_, dense_format(dtype), size.outputs, size.inputs, 21, {});
    EXPECT_TRUE(have_the_bits_of_one(
        *backend_, kCounts, size, 0.5f, [&](const float* x, int rows, float* out) {
          backend_->add_linear({Phase::kDecode, WeightRead::kTarget, x, rows, linear.get(), out});
        }));
  }
}

// Of fp16 each row's inputs are brought into its range, some at a time.
TEST_P(RowsOps, InputsOfAnyMagnitudeHaveTheBitsOfOne) {
  const Size size{1500, 33};
  const TestLinear linear =
      TestLinear::random(*backend_, dense_format(DType::kF16), size.outputs, size.inputs, 21, {});
  const auto counts = GetParam() == "cuda" ? std::span<const int>(kRowCounts) : kFewCounts;
  Floats inputs = normal_floats(std::size_t(counts.back()) * size.inputs, 4);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    constexpr int kPowers[] = {0, 100, -100, 17, -126, 0, -30};
    const std::size_t row = i / size.inputs, part = i % size.inputs / 64;
    inputs[i] = row % 5 == 3 && part < 4 ? 0.0f : std::ldexp(inputs[i], kPowers[(row + part) % 7]);
  }
  EXPECT_TRUE(have_the_bits_of_one(
      *backend_, counts, size, 0.5f, inputs, [&](const float* x, int rows, float* out) {
        backend_->add_linear({Phase::kDecode, WeightRead::kTarget, x, rows, linear.get(), out});
      }));
}

// Warps that multiply give what they have read back to a warp that brings the next: a race would
// show in one of many thousand launches, most where processes take turns on the GPU. To look for
// one, run six of this test at a time with --gtest_repeat (docs/decisions/0026).
TEST_P(RowsOps, ManyLaunchesHaveTheSameBits) {
  if (GetParam() != "cuda") GTEST_SKIP() << "about races of a GPU's warps";
  constexpr int kRows = 32, kAtOnce = 16, kRepeats = 64;
  const Size size{2100, 16888};
  const std::size_t count = std::size_t{kRows} * size.outputs;
  const Guarded<float> x(*backend_, normal_floats(std::size_t{kRows} * size.inputs, 4));
  const Guarded<float> weight(*backend_, normal_floats(size.inputs, 20));
  const Norm norm{weight.data(), 1e-5f};
  Guarded<float> out(*backend_, kAtOnce * count);
  for (const WeightFormat& format : {dense_format(DType::kF16), sliced_format(128), kQ4K}) {
    const TestLinear linear =
        TestLinear::random(*backend_, format, size.outputs, size.inputs, 21, {});
    Floats first;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (int i = 0; i < kAtOnce; ++i) {
        backend_->head({WeightRead::kTarget, x.data(), kRows, norm, linear.get(),
                        out.data() + std::ptrdiff_t(i * count)});
      }
      const Floats all = out.values();
      if (first.empty()) first.assign(all.begin(), all.begin() + std::ptrdiff_t(count));
      for (int i = 0; i < kAtOnce; ++i) {
        ASSERT_TRUE(same_bits(&all[i * count], first.data(), count))
            << format.bits << " bits, launch " << repeat * kAtOnce + i;
      }
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(RowsOps);

}  // namespace
}  // namespace quantspec
