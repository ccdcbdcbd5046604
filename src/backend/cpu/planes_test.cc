// Every format of weight_format.h in this backend's planes: their sizes, the elements that come out
// of them, and products, against decode_row().
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/test_support.h"
#include "backend/cpu/weight_planes.h"
#include "base/error.h"
#include "quant/test_support.h"

namespace quantspec::cpu {
namespace {

// A layer whose target is planes, read by drafts too.
struct PlaneLayer {
  PlaneLayer(const Context& context, const WeightFormat& format, int outputs, int inputs,
             unsigned seed)
      : codes(format, outputs, inputs, seed), bias(random_floats(outputs, seed + 1)) {
    const PlaneBytes bytes = weight_plane_bytes(outputs, inputs, format);
    upper = Buffer(bytes.upper);
    lower = Buffer(bytes.lower);
    import_weight_planes(context, codes.matrix(), upper.data(), lower.data());
    linear.target = {format, outputs, inputs, upper.data(),
                     bytes.lower == 0 ? nullptr : lower.data()};
    linear.draft = linear.target;
    linear.bias = bias.data();
  }

  RandomCodes codes;
  std::vector<float> bias;
  Buffer upper, lower;
  Linear linear;
};

std::vector<float> run(const Context& context, const Linear& linear, WeightRead read,
                       const std::vector<float>& x, int rows, Phase phase = Phase::kDecode) {
  Guarded y(static_cast<std::size_t>(rows) * linear.outputs(), 1.0f);
  const Projection projection = {&linear, y.data()};
  project(context, {phase, read, x.data(), rows, {&projection, 1}});
  EXPECT_TRUE(y.intact());
  return y.values();
}

// Every instruction set with every format.
class PlanesTest : public testing::TestWithParam<std::tuple<Isa, NamedFormat>> {
 protected:
  const WeightFormat& format() const { return std::get<1>(GetParam()).format; }
  Context context() { return on(pool_, scratch_); }
  Context on(ThreadPool& pool, Scratch& scratch) {
    return {pool, kernels(std::get<0>(GetParam())), scratch};
  }

 private:
  ThreadPool pool_{2};
  Scratch scratch_{2};
};

TEST_P(PlanesTest, ElementsHaveTheBitsOfDecodeRow) {
  for (const int cols : {8, 24, 40, 100, 256, 300, 544}) {
    PlaneLayer layer(context(), format(), 37, cols, 11 + cols);
    for (const auto& [first, count] : {std::pair(0, 37), {5, 1}, {36, 1}, {14, 5}, {16, 16}}) {
      Guarded out(static_cast<std::size_t>(count) * cols);
      read_weight_rows(context().kernels.linear, layer.linear.target, first, count, out.data());
      ASSERT_TRUE(out.intact());
      for (int i = 0; i < count; ++i) {
        const std::vector<float> expected = layer.codes.weights(first + i);
        const std::vector<float> row(out.data() + i * cols, out.data() + (i + 1) * cols);
        ASSERT_TRUE(same_bits(row, expected)) << "row " << first + i << " of " << cols;
      }
    }
  }
}

TEST_P(PlanesTest, PanelsHaveTheElementsRounded) {
  const Kernels& all = context().kernels;
  if (all.bf16 == nullptr) GTEST_SKIP() << "multiplies no bf16";
  constexpr int kRows = 37;
  for (const int cols : {8, 24, 40, 100, 256, 300, 544}) {
    PlaneLayer layer(context(), format(), kRows, cols, 11 + cols);
    const int depth = (cols + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
    for (int first = 0; first < kRows; first += kTileOutputs) {
      std::vector<std::uint16_t> panel(kTileOutputs * depth + 1, 77);
      read_weight_panel(*all.bf16, layer.linear.target, first, panel.data());
      EXPECT_EQ(panel.back(), 77);
      for (int i = 0; i < std::min(kTileOutputs, kRows - first); ++i) {
        std::vector<float> expected = as_multiplied(context(), layer.codes.weights(first + i));
        expected.resize(depth);
        std::vector<float> row;
        for (int k = 0; k < depth; ++k) {
          row.push_back(bf16_to_f32(panel[(k & ~1) * kTileOutputs + 2 * i + k % 2]));
        }
        ASSERT_TRUE(same_bits(row, expected)) << "row " << first + i << " of " << cols;
      }
    }
  }
}

// W x of one output and row in double, and what an output may err by. Activations are rounded to
// `steps` steps of the greatest magnitude of up to 128 inputs, and to nothing else: half a step
// times the magnitudes of the weights, and fp32 sums.
struct ExactProduct {
  double sum, energy, bound;

  ExactProduct(PlaneLayer& layer, int output, const std::vector<float>& w, const float* x,
               double steps)
      : sum(layer.bias[output]), energy(1e-6 * sum * sum), bound(1e-6 * std::abs(sum)) {
    const WeightFormat& format = layer.codes.format;
    const int inputs = layer.linear.inputs(), step = format.group == 64 ? 64 : 128;
    double greatest = 0.0;
    for (int k = 0; k < inputs; ++k) {
      if (k % step == 0) greatest = magnitude(x + k, std::min(step, inputs - k));
      const double product = double{w[k]} * x[k];
      sum += product;
      energy += product * product;
      bound += 0.5 * greatest / steps * std::abs(w[k]);
      // What a sum of codes rounds in fp32 is of their size, and not of the weights'.
      const GroupValues v = group_values(format, layer.codes.rows[output].view(), k / format.group);
      bound += 1e-6 * (256.0 * std::abs(v.scale) + std::abs(v.offset)) * std::abs(x[k]);
    }
  }

  static double magnitude(const float* x, int count) {
    double most = 0.0;
    for (int i = 0; i < count; ++i) most = std::max<double>(most, std::abs(x[i]));
    return most;
  }
};

// NOTE: that outputs err by little on the whole, too, shows what no bound of a single one does: a
// cell's centre that is off by half a code. Rounded activations err by 0.7% or 0.006% of their
// size.
void expect_near_product(const Context& context, PlaneLayer& layer, WeightRead read, int rows) {
  const int inputs = layer.linear.inputs(), outputs = layer.linear.outputs();
  const bool upper_only = read == WeightRead::kUpper;
  const double steps = upper_only ? 127 : 127 * 128;
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows) * inputs, 61);
  const std::vector<float> y = run(context, layer.linear, read, x, rows);
  double energy = 0.0, errors = 0.0;
  for (int o = 0; o < outputs; ++o) {
    const std::vector<float> w = layer.codes.weights(o, upper_only);
    for (int r = 0; r < rows; ++r) {
      const ExactProduct exact(layer, o, w, &x[r * inputs], steps);
      const double error = y[r * outputs + o] - exact.sum;
      ASSERT_LE(std::abs(error), exact.bound) << "output " << o << " of " << inputs << " inputs";
      energy += exact.energy;
      errors += error * error;
    }
  }
  EXPECT_LE(std::sqrt(errors / energy), upper_only ? 2e-2 : 3e-4) << inputs << " inputs";
}

TEST_P(PlanesTest, ProductsAreNearExact) {
  for (const int inputs : {8, 24, 40, 100, 256, 300, 544}) {
    for (const int outputs : {1, 17, 101}) {
      PlaneLayer layer(context(), format(), outputs, inputs, 7 * inputs + outputs);
      for (const WeightRead read : {WeightRead::kTarget, WeightRead::kBoth, WeightRead::kUpper}) {
        expect_near_product(context(), layer, read, 1 + (inputs + outputs) % 5);
      }
    }
  }
}

TEST_P(PlanesTest, ProductsAreNearExactForEveryNumberOfRows) {
  PlaneLayer layer(context(), format(), 70, 320, 5);
  for (int rows = 1; rows <= 17; ++rows) {
    expect_near_product(context(), layer, WeightRead::kTarget, rows);
    expect_near_product(context(), layer, WeightRead::kUpper, rows);
  }
}

TEST_P(PlanesTest, BitsOfARowDependOnNothingBesideIt) {
  constexpr int kInputs = 304, kOutputs = 101;
  PlaneLayer layer(context(), format(), kOutputs, kInputs, 3);
  const std::vector<float> x = random_floats(17 * kInputs, 4);
  for (const WeightRead read : {WeightRead::kTarget, WeightRead::kUpper}) {
    std::vector<float> alone;
    for (int r = 0; r < 17; ++r) {
      const std::vector<float> row(x.begin() + r * kInputs, x.begin() + (r + 1) * kInputs);
      const std::vector<float> y = run(context(), layer.linear, read, row, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int rows = 1; rows <= 17; ++rows) {
      const std::vector<float> expected(alone.begin(), alone.begin() + rows * kOutputs);
      EXPECT_TRUE(same_bits(run(context(), layer.linear, read, x, rows), expected)) << rows;
    }
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      Scratch scratch(threads);
      EXPECT_TRUE(same_bits(run(on(pool, scratch), layer.linear, read, x, 17), alone)) << threads;
    }
  }
}

// With elements, and planes in groups and steps of other sizes.
TEST_P(PlanesTest, FormatsOfARegionDoNotSeeEachOther) {
  constexpr int kInputs = 304, kRows = 5;
  PlaneLayer a(context(), format(), 64, kInputs, 1);
  const TestMatrix elements(DType::kBF16, 33, kInputs, 2);
  const Linear b = {.target = dense(elements.view())};
  const std::vector<float> x = random_floats(kRows * kInputs, 3);
  for (const NamedFormat& other : kNamedFormats) {
    PlaneLayer c(context(), other.format, 17, kInputs, 4);
    for (const WeightRead read : {WeightRead::kTarget, WeightRead::kUpper}) {
      Guarded ya(kRows * 64), yb(kRows * 33), yc(kRows * 17);
      Projection all[] = {{&a.linear, ya.data()}, {&c.linear, yc.data()}, {&b, yb.data()}};
      const std::size_t count = read == WeightRead::kTarget ? 3 : 2;
      project(context(), {Phase::kDecode, read, x.data(), kRows, {all, count}});
      EXPECT_TRUE(same_bits(ya.values(), run(context(), a.linear, read, x, kRows))) << other.name;
      EXPECT_TRUE(same_bits(yc.values(), run(context(), c.linear, read, x, kRows))) << other.name;
      if (count < 3) continue;
      EXPECT_TRUE(same_bits(yb.values(), run(context(), b, read, x, kRows))) << other.name;
    }
  }
}

TEST_P(PlanesTest, PrefillIsNearExact) {
  constexpr int kInputs = 304, kOutputs = 300, kRows = 40;
  PlaneLayer layer(context(), format(), kOutputs, kInputs, 6);
  const std::vector<float> x = random_floats(kRows * kInputs, 7);
  const auto y = run(context(), layer.linear, WeightRead::kTarget, x, kRows, Phase::kPrefill);
  const std::vector<float> in = as_multiplied(context(), x);
  for (int o = 0; o < kOutputs; ++o) {
    const std::vector<float> w = as_multiplied(context(), layer.codes.weights(o));
    for (int r = 0; r < kRows; ++r) {
      double sum = layer.bias[o], magnitude = std::abs(sum);
      for (int k = 0; k < kInputs; ++k) {
        sum += double{w[k]} * in[r * kInputs + k];
        magnitude += std::abs(double{w[k]} * in[r * kInputs + k]);
      }
      ASSERT_NEAR(y[r * kOutputs + o], sum, 2e-6 * magnitude) << "output " << o << ", row " << r;
    }
  }
}

TEST_P(PlanesTest, EmbeddingsAreRowsOfTheTable) {
  constexpr int kWidth = 272, kTokens = 6;
  PlaneLayer layer(context(), format(), 50, kWidth, 8);
  CpuBackend backend(std::get<0>(GetParam()), 2);
  const TokenId tokens[kTokens] = {0, 49, 17, 16, 3, 49};
  Guarded out(kTokens * kWidth);
  SequenceRows rows{};
  rows.tokens = tokens;
  rows.num_rows = kTokens;
  backend.embed({.sequences = {&rows, 1}, .table = layer.linear.target, .out = out.data()});
  EXPECT_TRUE(out.intact());
  for (int i = 0; i < kTokens; ++i) {
    const float* row = out.data() + i * kWidth;
    EXPECT_TRUE(same_bits({row, row + kWidth}, layer.codes.weights(tokens[i]))) << i;
  }
}

std::string planes_test_name(const testing::TestParamInfo<std::tuple<Isa, NamedFormat>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(Cpu, PlanesTest,
                         testing::Combine(testing::ValuesIn(supported_isa_list()),
                                          testing::ValuesIn(kNamedFormats)),
                         planes_test_name);

// --- sizes ---------------------------------------------------------------------------------------

TEST(PlaneBytesTest, PlanesAreAtMost5PercentLargerThanTheFile) {
  for (const NamedFormat& f : kNamedFormats) {
    if (f.file_bits == 0) continue;
    const PlaneBytes bytes = weight_plane_bytes(4096, 2048, f.format);
    const double bits = 8.0 * static_cast<double>(bytes.upper + bytes.lower) / (4096.0 * 2048.0);
    EXPECT_LE(bits, 1.05 * f.file_bits) << f.name;
    EXPECT_GE(bits, f.file_bits) << f.name;
  }
}

TEST(PlaneBytesTest, FormatsWithoutAKernelAreRefusedByName) {
  const WeightFormat refused[] = {{.bits = 3, .group = 32, .block = 32},
                                  {.bits = 5, .group = 16, .block = 16},
                                  {.bits = 4, .group = 256, .block = 256},
                                  {.bits = 4, .group = 32, .block = 128},
                                  {.bits = 8, .group = 32, .block = 32, .table = CodeTable::kIq4}};
  for (const WeightFormat& format : refused) {
    try {
      weight_plane_bytes(16, 256, format);
      ADD_FAILURE() << format.bits << " bits, group " << format.group;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupportedModel);
      EXPECT_NE(std::string(error.what()).find("groups of"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(weight_plane_bytes(16, 256, dense_format(DType::kF32)), Error);
}

}  // namespace
}  // namespace quantspec::cpu
