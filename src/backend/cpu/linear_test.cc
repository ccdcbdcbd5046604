#include "backend/cpu/linear.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include "backend/cpu/cpu.h"
#include "backend/cpu/test_support.h"
#include "backend/cpu/weight_planes.h"
#include "backend/params/segments.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec::cpu {
namespace {

constexpr int kInputs[] = {8, 24, 48, 64, 80, 100, 128, 200, 512, 1408};
constexpr int kOutputs[] = {1, 3, 16, 17, 101, 512};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr WeightRead kReads[] = {WeightRead::kTarget, WeightRead::kUpper, WeightRead::kBoth};

// A random layer with its planes.
struct TestLayer {
  TestLayer(const Context& context, DType dtype, int outputs, int inputs, unsigned seed,
            bool with_bias = true)
      : matrix(dtype, outputs, inputs, seed), bias(random_floats(outputs, seed + 1)) {
    make_planes(context);
    linear.target = dense(matrix.view());
    if (with_bias) linear.bias = bias.data();
  }
  void make_planes(const Context& context) {
    const TensorView view = matrix.view();
    const PlaneBytes bytes = weight_plane_bytes(view.rows, view.cols, sliced_format());
    upper = Buffer(bytes.upper);
    lower = Buffer(bytes.lower);
    make_weight_planes(context, dense(view), sliced_format(), upper.data(), lower.data());
    linear.draft = {sliced_format(), view.rows, view.cols, upper.data(), lower.data()};
  }

  TestMatrix matrix;
  std::vector<float> bias;
  Buffer upper, lower;
  Linear linear;
};

std::vector<float> run(const Context& context, const Linear& linear, WeightRead read,
                       const std::vector<float>& x, int rows, bool accumulate = false) {
  Guarded y(static_cast<std::size_t>(rows) * linear.outputs(), 1.0f);
  const Projection projection = {&linear, y.data()};
  project(context, {Phase::kDecode, read, x.data(), rows, {&projection, 1}, accumulate});
  EXPECT_TRUE(y.intact());
  return y.values();
}

class LinearTest : public IsaTest {};

// Sums of 1408 products in 16 lanes: 88 roundings of 2^-24 each at most, 5e-6 of the sum of
// magnitudes; they never all fall on one side.
constexpr double kFullBound = 1e-6;

void expect_near_exact(const Context& context, DType dtype, int outputs, int inputs, int rows) {
  const TestLayer layer(context, dtype, outputs, inputs, 7 * outputs + inputs, outputs % 2 == 0);
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows) * inputs, 3);
  const std::vector<float> y = run(context, layer.linear, WeightRead::kTarget, x, rows);
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) {
      double sum = layer.linear.bias == nullptr ? 0.0 : layer.bias[o];
      double magnitude = std::abs(sum);
      for (int k = 0; k < inputs; ++k) {
        const double product = double{layer.matrix.at(o, k)} * x[r * inputs + k];
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(y[r * outputs + o], sum, kFullBound * magnitude)
          << name_of(dtype) << " [" << outputs << ", " << inputs << "] row " << r << " of " << rows
          << " output " << o;
    }
  }
}

TEST_P(LinearTest, FullPrecisionIsNearExactForEveryShape) {
  for (const DType dtype : kDTypes) {
    for (const int inputs : kInputs) {
      for (const int outputs : kOutputs) {
        expect_near_exact(context(), dtype, outputs, inputs, 1 + (inputs + outputs) % 5);
      }
    }
  }
}

TEST_P(LinearTest, FullPrecisionIsNearExactForEveryNumberOfRows) {
  for (int rows = 1; rows <= 17; ++rows) {
    for (const int inputs : {24, 100, 512}) {
      expect_near_exact(context(), DType::kBF16, 17, inputs, rows);
    }
  }
}

TEST_P(LinearTest, BitsOfARowDependOnNothingBesideIt) {
  for (const WeightRead read : kReads) {
    for (const int inputs : {40, 100, 300}) {
      const TestLayer layer(context(), DType::kBF16, 101, inputs, inputs);
      const std::vector<float> x = random_floats(17 * inputs, 5);
      std::vector<float> alone;
      for (int r = 0; r < 17; ++r) {
        const std::vector<float> row(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
        const std::vector<float> y = run(context(), layer.linear, read, row, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int rows = 1; rows <= 17; ++rows) {
        const std::vector<float> expected(alone.begin(), alone.begin() + rows * 101);
        EXPECT_TRUE(same_bits(run(context(), layer.linear, read, x, rows), expected))
            << rows << " rows of " << inputs << " inputs, read " << static_cast<int>(read);
      }
    }
  }
}

TEST_P(LinearTest, BitsDoNotDependOnTheNumberOfThreads) {
  const TestLayer layer(context(), DType::kF16, 512, 200, 11);
  const std::vector<float> x = random_floats(9 * 200, 12);
  for (const WeightRead read : kReads) {
    const std::vector<float> expected = run(context(), layer.linear, read, x, 9);
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      Scratch scratch(threads);
      EXPECT_TRUE(same_bits(run(on(pool, scratch), layer.linear, read, x, 9), expected))
          << threads << " threads, read " << static_cast<int>(read);
    }
  }
}

TEST_P(LinearTest, SeveralProjectionsEqualEachAlone) {
  const TestLayer a(context(), DType::kBF16, 512, 128, 1), b(context(), DType::kBF16, 101, 128, 2),
      c(context(), DType::kF32, 3, 128, 3);
  const std::vector<float> x = random_floats(5 * 128, 4);
  for (const WeightRead read : kReads) {
    Guarded ya(5 * 512), yb(5 * 101), yc(5 * 3);
    const Projection all[] = {
        {&a.linear, ya.data()}, {&b.linear, yb.data()}, {&c.linear, yc.data()}};
    project(context(), {Phase::kDecode, read, x.data(), 5, all});
    EXPECT_TRUE(same_bits(ya.values(), run(context(), a.linear, read, x, 5)));
    EXPECT_TRUE(same_bits(yb.values(), run(context(), b.linear, read, x, 5)));
    EXPECT_TRUE(same_bits(yc.values(), run(context(), c.linear, read, x, 5)));
    EXPECT_TRUE(ya.intact() && yb.intact() && yc.intact());
  }
}

TEST_P(LinearTest, AccumulateAddsToWhatIsThere) {
  TestLayer layer(context(), DType::kBF16, 101, 200, 21);
  const std::vector<float> x = random_floats(6 * 200, 22);
  for (const WeightRead read : kReads) {
    layer.linear.bias = nullptr;
    const std::vector<float> sums = run(context(), layer.linear, read, x, 6);
    for (const float* bias : std::initializer_list<const float*>{nullptr, layer.bias.data()}) {
      layer.linear.bias = bias;
      std::vector<float> expected = sums;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const float before = 1.0f + (bias == nullptr ? 0.0f : bias[i % 101]);  // run() has y = 1
        expected[i] = before + sums[i];
      }
      EXPECT_TRUE(same_bits(run(context(), layer.linear, read, x, 6, true), expected));
    }
  }
}

// A sum in segments is the tree of the sums over their inputs, each the sum of a matrix that has no
// others.
TEST_P(LinearTest, SegmentsAreSumsOfTheirInputs) {
  constexpr int kOutputs = 101, kInputs = 1408 + 24;
  TestLayer layer(context(), DType::kBF16, kOutputs, kInputs, 41);
  for (const auto& [rows, segment_count] :
       {std::pair{1, 4}, {2, 8}, {2, 2}, {5, 4}, {6, 8}, {17, 2}, {17, 4}}) {
    layer.linear.segments = segment_count;
    const std::vector<float> x = random_floats(static_cast<std::size_t>(rows) * kInputs, rows);
    for (const WeightRead read : kReads) {
      const Segments segments = segments_of(layer.linear, read);
      std::vector<std::vector<float>> sums(segment_count);
      for (int i = 0, first = 0; i < segment_count; first = segments.ends[i++]) {
        const int count = segments.ends[i] - first;
        ASSERT_GT(count, 0);
        TestLayer part(context(), DType::kBF16, kOutputs, count, 1, false);
        for (int k = 0; k < kOutputs * count; ++k) {
          part.matrix.set(k, layer.matrix.at(k / count, first + k % count));
        }
        part.make_planes(context());
        std::vector<float> in;
        for (int r = 0; r < rows; ++r) {
          const auto begin = x.begin() + r * kInputs + first;
          in.insert(in.end(), begin, begin + count);
        }
        sums[i] = run(context(), part.linear, read, in, rows);
      }
      std::vector<float> expected(sums[0].size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        std::vector<float> tree;
        for (const auto& own : sums) tree.push_back(own[i]);
        for (; tree.size() > 1; tree.resize(tree.size() / 2)) {
          for (std::size_t j = 0; j < tree.size() / 2; ++j) tree[j] = tree[2 * j] + tree[2 * j + 1];
        }
        expected[i] = (1.0f + layer.bias[i % kOutputs]) + tree[0];
      }
      EXPECT_TRUE(same_bits(run(context(), layer.linear, read, x, rows, true), expected))
          << rows << " rows, read " << static_cast<int>(read);
    }
  }
}

TEST_P(LinearTest, NanAndInfinityOfAWeightReachItsOutputAlone) {
  TestLayer layer(context(), DType::kBF16, 33, 200, 31, false);
  layer.matrix.set(200 * 5 + 199, std::numeric_limits<float>::quiet_NaN());
  layer.matrix.set(200 * 20 + 3, std::numeric_limits<float>::infinity());
  layer.make_planes(context());
  const std::vector<float> x = random_floats(6 * 200, 32);
  for (const WeightRead read : kReads) {
    const std::vector<float> y = run(context(), layer.linear, read, x, 6);
    for (int i = 0; i < 6 * 33; ++i) {
      EXPECT_EQ(std::isfinite(y[i]), i % 33 != 5 && i % 33 != 20)
          << "output " << i % 33 << ", read " << static_cast<int>(read);
      EXPECT_EQ(std::isnan(y[i]) || i % 33 != 5, true);
    }
  }
}

TEST_P(LinearTest, NanAndInfinityOfAnInputReachEveryOutputOfItsRow) {
  const TestLayer layer(context(), DType::kBF16, 33, 200, 41, false);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int input : {0, 130, 199}) {
      std::vector<float> x = random_floats(6 * 200, 42);
      x[2 * 200 + input] = bad;
      for (const WeightRead read : kReads) {
        const std::vector<float> y = run(context(), layer.linear, read, x, 6);
        for (int i = 0; i < 6 * 33; ++i) EXPECT_EQ(std::isfinite(y[i]), i / 33 != 2);
      }
    }
  }
}

TEST_P(LinearTest, ProjectionWithoutPlanesIsRefused) {
  TestLayer layer(context(), DType::kBF16, 16, 64, 51);
  layer.linear.draft.lower = nullptr;
  const std::vector<float> x = random_floats(64, 52);
  EXPECT_THROW(run(context(), layer.linear, WeightRead::kBoth, x, 1), Error);
}

// --- planes --------------------------------------------------------------------------------------

// One row's codes and scales as the planes hold them.
void unpack_row(const TestLayer& layer, int row, bool with_lower, std::vector<std::uint8_t>& codes,
                std::vector<GroupScale>& scales) {
  const int cols = layer.linear.inputs();
  const PlaneLayout layout(sliced_format(), cols);
  const std::byte* upper = layer.upper.data() + row / 16 * layout.upper_bytes;
  const std::byte* lower = layer.lower.data() + row / 16 * layout.lower_bytes;
  const auto nibble = [](const std::byte* plane, std::size_t index) {
    return (std::to_integer<int>(plane[index / 2]) >> (index % 2 * 4)) & 15;
  };
  codes.assign(cols, 0);
  const int groups = sliced_format().groups(cols);
  scales.assign(groups, {});
  for (int group = 0; group < groups; ++group) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(upper);
    scales[group] = {halves[row % 16], halves[16 + row % 16]};
    upper += kTileBytes;
    const int count = std::min(kWeightGroup, cols - group * kWeightGroup);
    for (int k = 0; k < count; ++k) {
      const std::size_t index = tile_nibble(row % 16, k, kWeightGroup);
      codes[group * kWeightGroup + k] =
          16 * nibble(upper, index) + (with_lower ? nibble(lower, index) : 0);
    }
    const int tiles = (count + kTileTerms - 1) / kTileTerms;
    upper += kTileBytes * tiles;
    lower += kTileBytes * tiles;
  }
}

TEST_P(LinearTest, PlanesHoldTheCodesOfTheCodec) {
  for (const DType dtype : kDTypes) {
    for (const int inputs : kInputs) {
      TestLayer layer(context(), dtype, 37, inputs, inputs + 1);
      // Edge cases: constant groups, a zero of either sign, tiny and huge values, NaN, infinity.
      for (int k = 0; k < inputs; ++k) {
        layer.matrix.set(1 * inputs + k, 0.75f);
        layer.matrix.set(2 * inputs + k, k % 3 == 1 ? 0.0f : -0.0f);
        layer.matrix.set(3 * inputs + k, 1e-7f * static_cast<float>(k % 5));
        layer.matrix.set(4 * inputs + k, 6e4f * static_cast<float>(k % 7 - 3));
      }
      layer.matrix.set(5 * inputs + inputs / 2, std::numeric_limits<float>::quiet_NaN());
      layer.matrix.set(6 * inputs + inputs - 1, -std::numeric_limits<float>::infinity());
      layer.make_planes(context());
      for (int row = 0; row < 37; ++row) {
        std::vector<std::uint8_t> codes, expected_codes(inputs);
        std::vector<GroupScale> scales, expected_scales(sliced_format().groups(inputs));
        unpack_row(layer, row, true, codes, scales);
        encode_row(sliced_format(), inputs, layer.matrix.row(row),
                   {expected_codes.data(), expected_scales.data(), nullptr, nullptr});
        ASSERT_EQ(codes, expected_codes) << "row " << row << ", " << inputs << " inputs";
        ASSERT_TRUE(scales == expected_scales) << "row " << row << ", " << inputs << " inputs";
      }
    }
  }
}

// Whatever instruction set makes them: those of groups of 32 are fitted in its own lanes.
TEST_P(LinearTest, FittedPlanesAreThoseOfTheCodec) {
  const WeightFormat format = sliced_format(kFineGroup);
  for (const DType dtype : kDTypes) {
    for (const int inputs : kInputs) {
      TestMatrix matrix(dtype, 37, inputs, inputs + 1);
      for (int k = 0; k < inputs; ++k) {
        matrix.set(1 * inputs + k, 0.75f);
        matrix.set(2 * inputs + k, k % 3 == 1 ? 0.0f : -0.0f);
        matrix.set(3 * inputs + k, 1e-7f * static_cast<float>(k % 5));
        matrix.set(4 * inputs + k, 6e4f * static_cast<float>(k % 7 - 3));
      }
      matrix.set(5 * inputs + inputs / 2, std::numeric_limits<float>::quiet_NaN());
      matrix.set(6 * inputs + inputs - 1, -std::numeric_limits<float>::infinity());
      matrix.set(7 * inputs, 100.0f);
      const auto encode = [&](int row, const RowCodes& out) {
        encode_row(format, inputs, matrix.row(row), out);
      };
      const PlaneBytes bytes = weight_plane_bytes(37, inputs, format);
      std::vector<std::byte> upper(bytes.upper), lower(bytes.lower);
      std::vector<std::byte> expected_upper(bytes.upper), expected_lower(bytes.lower);
      make_weight_planes(context(), dense(matrix.view()), format, upper.data(), lower.data());
      import_weight_planes(context(), {format, 37, inputs, encode}, expected_upper.data(),
                           expected_lower.data());
      ASSERT_TRUE(upper == expected_upper) << inputs << " inputs";
      ASSERT_TRUE(lower == expected_lower) << inputs << " inputs";
    }
  }
}

// Activations are rounded to `steps` steps of their group's greatest magnitude, and to nothing
// else: an output errs by half a step times the magnitudes of its weights, and by fp32 sums.
void expect_near_dequantized(const Context& context, const TestLayer& layer, WeightRead read,
                             int rows) {
  const int inputs = layer.linear.inputs(), outputs = layer.linear.outputs();
  const bool both = read == WeightRead::kBoth;
  const double steps = both ? 127 * 128 : 127;
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows) * inputs, 61);
  const std::vector<float> y = run(context, layer.linear, read, x, rows);
  for (int o = 0; o < outputs; ++o) {
    std::vector<std::uint8_t> codes;
    std::vector<GroupScale> scales;
    unpack_row(layer, o, both, codes, scales);
    for (int r = 0; r < rows; ++r) {
      double sum = layer.bias[o], bound = 1e-6 * std::abs(sum);
      for (int first = 0; first < inputs; first += kWeightGroup) {
        const GroupScale group = scales[first / kWeightGroup];
        const float scale = f16_to_f32(group.scale), offset = f16_to_f32(group.offset);
        double greatest = 0.0, weights = 0.0, products = 0.0;
        for (int k = first; k < std::min(inputs, first + kWeightGroup); ++k) {
          const double w =
              both ? target_value(codes[k], scale, offset) : draft_value(codes[k], scale, offset);
          const double in = x[r * inputs + k];
          sum += w * in;
          greatest = std::max(greatest, std::abs(in));
          weights += std::abs(w);
          products += std::abs(double{scale} * codes[k] * in) + std::abs(offset * in);
        }
        bound += 0.5 * greatest / steps * weights + 1e-6 * products;
      }
      ASSERT_NEAR(y[r * outputs + o], sum, bound) << "output " << o << ", " << inputs << " inputs";
    }
  }
}

TEST_P(LinearTest, PlanesAreNearDequantizedArithmetic) {
  for (const int inputs : kInputs) {
    for (const int outputs : {1, 17, 101}) {
      const TestLayer layer(context(), DType::kBF16, outputs, inputs, inputs + outputs);
      for (const int rows : {1, 2, 7}) {
        expect_near_dequantized(context(), layer, WeightRead::kUpper, rows);
        expect_near_dequantized(context(), layer, WeightRead::kBoth, rows);
      }
    }
  }
}

// --- elementwise ---------------------------------------------------------------------------------

TEST_P(LinearTest, RmsNormRopeAndSiluFollowTheirFormulas) {
  const LinearKernels& kernels = context().kernels.linear;
  for (const int count : {8, 24, 48, 64, 80, 100, 128, 512}) {
    const std::vector<float> x = random_floats(count, 71), w = random_floats(count, 72);
    Guarded normed(count);
    kernels.rms_norm(x.data(), w.data(), 1e-5f, count, normed.data());
    double squares = 0.0;
    for (const float v : x) squares += double{v} * v;
    const double inverse = 1.0 / std::sqrt(squares / count + 1e-5);
    Guarded rotated(count);
    std::copy(x.begin(), x.end(), rotated.data());
    kernels.rope(rotated.data(), w.data(), w.data() + count / 2, count);
    Guarded gated(count);
    std::copy(x.begin(), x.end(), gated.data());
    gated.data()[0] = -200.0f;
    gated.data()[1] = 200.0f;
    kernels.silu_mul(gated.data(), w.data(), count);
    for (int i = 0; i < count; ++i) {
      const double norm = x[i] * inverse * w[i];
      EXPECT_NEAR(normed[i], norm, 1e-6 * std::abs(norm));
      const int pair = i % (count / 2);
      const double a = x[pair], b = x[pair + count / 2], c = w[pair], s = w[pair + count / 2];
      EXPECT_NEAR(rotated[i], i < count / 2 ? a * c - b * s : b * c + a * s,
                  2e-7 * (std::abs(a) + std::abs(b)) * (std::abs(c) + std::abs(s)));
      const double g = i == 0 ? -200.0 : i == 1 ? 200.0 : x[i];
      const double silu = g / (1.0 + std::exp(-g)) * w[i];
      EXPECT_NEAR(gated[i], silu, 1e-6 * std::abs(silu) + 1e-30);
    }
    EXPECT_TRUE(normed.intact() && rotated.intact() && gated.intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearTest, testing::ValuesIn(supported_isa_list()), isa_test_name);

// --- the choice of an instruction set ------------------------------------------------------------

class IsaChoice : public testing::Test {
 protected:
  IsaChoice() {
    if (const char* value = std::getenv("QUANTSPEC_ISA")) before_ = value;
  }
  ~IsaChoice() override { setenv("QUANTSPEC_ISA", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_F(IsaChoice, EnvironmentForcesASupportedOne) {
  for (const std::string& name : supported_isas()) {
    setenv("QUANTSPEC_ISA", name.c_str(), 1);
    EXPECT_EQ(make_cpu_backend(2)->description(), "cpu (" + name + ", 2 threads)");
  }
  setenv("QUANTSPEC_ISA", "", 1);
  EXPECT_EQ(name_of(choose_isa()), supported_isas().back());
}

TEST_F(IsaChoice, UnknownOneIsAnErrorThatNamesTheSupported) {
  setenv("QUANTSPEC_ISA", "altivec", 1);
  try {
    make_cpu_backend(1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    EXPECT_NE(std::string(error.what()).find("altivec"), std::string::npos) << error.what();
    for (const std::string& name : supported_isas()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace quantspec::cpu
