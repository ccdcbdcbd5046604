// Ops that are matrix products: embed, add_linear, gate_up, head, and make_planes through them.
// Every backend against the reference, and against itself: a decode row alone and in company.
#include "backend/backend.h"

#include <cstdlib>
#include <limits>

#include "backend/cpu/cpu.h"
#include "backend/op_test_support.h"
#include "backend/reference/reference.h"

namespace quantspec {

std::vector<std::string> test_backends() {
  std::vector<std::string> names = cpu::supported_isas();
  names.insert(names.begin(), "reference");
  return names;
}

std::unique_ptr<Backend> make_test_backend(const std::string& name, int num_threads) {
  if (name == "reference") return reference::make_reference_backend(num_threads);
  const char* outer = std::getenv("QUANTSPEC_ISA");
  const std::string before = outer == nullptr ? "" : outer;
  setenv("QUANTSPEC_ISA", name.c_str(), 1);
  auto backend = cpu::make_cpu_backend(num_threads);
  setenv("QUANTSPEC_ISA", before.c_str(), 1);
  return backend;
}

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The bound on the largest error, in units of the output's rms, of full-precision weights, in
// either phase: they are read as they are and sums are fp32, so only the order of up to 1408
// additions differs. Measured: 4e-6.
constexpr double kFullError = 2e-5;
// Quantized weights may meet activations that the backend rounds to 8 bits: a step of max/127 on
// normal data is an NMSE of (3.5 / 127)^2 / 12 = 6e-5, more where a group has an outlier. Measured:
// 1.3e-4.
constexpr double kPlanesNmse = 2e-4;

struct Size {
  int inputs, outputs;
};
// Not multiples of vectors, groups or row blocks, and the sizes of pg-24m.
const Size kSizes[] = {{48, 80}, {80, 48}, {512, 96}, {512, 515}, {1408, 64}, {48, 1}};
constexpr int kRows[] = {1, 2, 5, 9, 17};
constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr WeightRead kReads[] = {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kFull};

testing::AssertionResult linear_near(const Floats& actual, const Floats& expected,
                                     WeightRead read) {
  return read == WeightRead::kFull ? near(actual, expected, kFullError)
                                   : near_nmse(actual, expected, kPlanesNmse);
}

Floats run_add_linear(Backend& backend, const TestLinear& linear, Phase phase, WeightRead read,
                      const Floats& in, int rows, float start = 0.0f) {
  const Guarded<float> x_in(backend, in);
  Guarded<float> x(backend, Floats(std::size_t(rows) * linear.get()->outputs(), start));
  backend.add_linear({phase, read, x_in.data(), rows, linear.get(), x.data()});
  EXPECT_TRUE(x.intact() && x_in.intact());
  EXPECT_TRUE(same_bits(x_in.data(), in.data(), in.size())) << "the input was changed";
  return x.values();
}

class LinearOps : public OpTest {};

TEST_P(LinearOps, EmbedCopiesRowsOfTheTable) {
  const std::vector<TokenId> tokens = {3, 0, 96, 3, 41};
  for (const DType dtype : kDtypes) {
    for (const int hidden : {48, 80, 512}) {
      const Matrix table(97, hidden, dtype, 1);
      Guarded<float> out(*backend_, tokens.size() * hidden);
      backend_->embed({tokens, table.view(), out.data()});
      EXPECT_TRUE(out.intact());
      for (std::size_t row = 0; row < tokens.size(); ++row) {
        for (int i = 0; i < hidden; ++i) {
          ASSERT_EQ(out.data()[row * hidden + i], table.at(tokens[row], i));
        }
      }
    }
  }
}

TEST_P(LinearOps, AddLinearIsNearTheReference) {
  for (const Size size : kSizes) {
    for (const DType dtype : kDtypes) {
      const Matrix matrix(size.outputs, size.inputs, dtype, 2);
      const Floats bias = size.inputs == 80 ? normal_floats(size.outputs, 3) : Floats{};
      const TestLinear linear(*backend_, matrix, bias);
      const TestLinear expected_linear(*reference_, matrix, bias);
      for (const int rows : kRows) {
        const Floats in = normal_floats(std::size_t(rows) * size.inputs, 4);
        for (const WeightRead read : kReads) {
          EXPECT_TRUE(linear_near(
              run_add_linear(*backend_, linear, Phase::kDecode, read, in, rows, 0.5f),
              run_add_linear(*reference_, expected_linear, Phase::kDecode, read, in, rows, 0.5f),
              read))
              << size.inputs << " to " << size.outputs << " " << name_of(dtype) << ", " << rows
              << " rows, read " << int(read);
        }
      }
    }
  }
}

TEST_P(LinearOps, PrefillIsNearTheReference) {
  for (const Size size : kSizes) {
    for (const DType dtype : kDtypes) {
      const Matrix matrix(size.outputs, size.inputs, dtype, 2);
      const Floats bias = normal_floats(size.outputs, 3);
      const TestLinear linear(*backend_, matrix, bias);
      const TestLinear expected_linear(*reference_, matrix, bias);
      for (const int rows : {1, 33, 70}) {
        const Floats in = normal_floats(std::size_t(rows) * size.inputs, 4);
        EXPECT_TRUE(
            near(run_add_linear(*backend_, linear, Phase::kPrefill, WeightRead::kFull, in, rows),
                 run_add_linear(*reference_, expected_linear, Phase::kPrefill, WeightRead::kFull,
                                in, rows),
                 kFullError))
            << size.inputs << " to " << size.outputs << " " << name_of(dtype) << ", " << rows;
      }
    }
  }
}

TEST_P(LinearOps, DecodeRowsAloneHaveTheSameBits) {
  constexpr int kAllRows = 17;
  for (const Size size : kSizes) {
    for (const DType dtype : kDtypes) {
      const TestLinear linear(*backend_, Matrix(size.outputs, size.inputs, dtype, 2));
      const Floats in = normal_floats(std::size_t{kAllRows} * size.inputs, 5);
      for (const WeightRead read : kReads) {
        const Floats all = run_add_linear(*backend_, linear, Phase::kDecode, read, in, kAllRows);
        for (int rows = 1; rows < kAllRows; ++rows) {
          const int first = (kAllRows - rows) / 2;
          const auto begin = in.begin() + std::ptrdiff_t{first} * size.inputs;
          const Floats part(begin, begin + std::ptrdiff_t{rows} * size.inputs);
          const Floats out = run_add_linear(*backend_, linear, Phase::kDecode, read, part, rows);
          ASSERT_TRUE(same_bits(out.data(), &all[std::size_t(first) * size.outputs], out.size()))
              << size.inputs << " to " << size.outputs << " " << name_of(dtype) << ", " << rows
              << " rows from " << first << ", read " << int(read);
        }
      }
    }
  }
}

TEST_P(LinearOps, ThreadsDoNotChangeBits) {
  const auto single = make_test_backend(GetParam(), 1);
  const Matrix matrix(515, 512, DType::kBF16, 2);
  const TestLinear linear(*backend_, matrix);
  const TestLinear linear_single(*single, matrix);
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    for (const int rows : {1, 5, 70}) {
      const Floats in = normal_floats(std::size_t(rows) * 512, 4);
      for (const WeightRead read : kReads) {
        if (phase == Phase::kPrefill && read != WeightRead::kFull) continue;
        const Floats a = run_add_linear(*backend_, linear, phase, read, in, rows);
        const Floats b = run_add_linear(*single, linear_single, phase, read, in, rows);
        EXPECT_TRUE(same_bits(a.data(), b.data(), a.size())) << rows << " rows";
      }
    }
  }
}

// A one-hot row reads one column of the weights: every code and scale of the planes shows. A
// thousandth of a step allows for how offset + scale * code is summed with zeros around it, and an
// 8-bit one is a number times 1/127 times 127.
TEST_P(LinearOps, PlanesHoldTheCodesOfTheCodec) {
  for (const Size size : {Size{48, 80}, Size{200, 33}, Size{512, 17}}) {
    Matrix matrix(size.outputs, size.inputs, DType::kBF16, 6);
    for (int i = 0; i < std::min(size.inputs, kWeightGroup); ++i) matrix.set(5, i, 0.25f);
    for (int i = 0; i < size.inputs; ++i) matrix.set(7, i, 0.0f);
    const TestLinear linear(*backend_, matrix);
    const TestLinear expected_linear(*reference_, matrix);
    for (int hot = 0; hot < size.inputs; hot += 7) {
      Floats in(size.inputs, 0.0f);
      in[hot] = 1.0f;
      for (const WeightRead read : kReads) {
        const Floats out = run_add_linear(*backend_, linear, Phase::kDecode, read, in, 1);
        const Floats expected =
            run_add_linear(*reference_, expected_linear, Phase::kDecode, read, in, 1);
        for (int o = 0; o < size.outputs; ++o) {
          ASSERT_NEAR(out[o], expected[o], 1e-5 + 1e-4 * std::abs(expected[o]))
              << "input " << hot << ", output " << o << ", read " << int(read);
        }
      }
    }
  }
}

TEST_P(LinearOps, UpperPlaneAloneIsEnoughForFourBits) {
  const Matrix matrix(80, 512, DType::kBF16, 2);
  const TestLinear both(*backend_, matrix);
  Guarded<std::byte> upper(*backend_, backend_->plane_bytes(80, 512).upper);
  backend_->make_planes(matrix.view(), upper.data(), nullptr);
  EXPECT_TRUE(upper.intact());
  const Linear linear{matrix.view(), nullptr, upper.data(), nullptr};
  const Floats in = normal_floats(5 * 512, 4);
  Floats x(5 * 80, 0.0f);
  backend_->add_linear({Phase::kDecode, WeightRead::kUpper, in.data(), 5, &linear, x.data()});
  const Floats expected =
      run_add_linear(*backend_, both, Phase::kDecode, WeightRead::kUpper, in, 5);
  EXPECT_TRUE(same_bits(x.data(), expected.data(), x.size()));
}

TEST_P(LinearOps, ImportedCodesGiveThePlanesThatAreMade) {
  for (const Size size : {Size{48, 80}, Size{200, 33}, Size{512, 17}, Size{1408, 512}}) {
    const Matrix matrix(size.outputs, size.inputs, DType::kF16, 6);
    const TestLinear made(*backend_, matrix);
    const auto bytes = backend_->plane_bytes(size.outputs, size.inputs);
    Guarded<std::byte> upper(*backend_, bytes.upper), lower(*backend_, bytes.lower);
    backend_->import_planes(TestCodes(matrix, kWeightGroup).get(), upper.data(), lower.data());
    EXPECT_TRUE(upper.intact() && lower.intact());
    EXPECT_EQ(std::memcmp(upper.data(), made.get()->upper, bytes.upper), 0) << size.inputs;
    EXPECT_EQ(std::memcmp(lower.data(), made.get()->lower, bytes.lower), 0) << size.inputs;

    Guarded<std::byte> alone(*backend_, bytes.upper);
    backend_->import_planes(TestCodes(matrix, kWeightGroup).get(), alone.data(), nullptr);
    EXPECT_TRUE(alone.intact());
    EXPECT_EQ(std::memcmp(alone.data(), made.get()->upper, bytes.upper), 0) << size.inputs;
  }
}

TEST_P(LinearOps, GroupsOf64AreNearTheReference) {
  for (const Size size : kSizes) {
    const Matrix matrix(size.outputs, size.inputs, DType::kBF16, 2);
    const TestLinear linear(*backend_, matrix, {}, 64);
    const TestLinear expected(*reference_, matrix, {}, 64);
    for (const int rows : kRows) {
      const Floats in = normal_floats(std::size_t(rows) * size.inputs, 4);
      for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth}) {
        const Floats all = run_add_linear(*backend_, linear, Phase::kDecode, read, in, rows);
        EXPECT_TRUE(linear_near(
            all, run_add_linear(*reference_, expected, Phase::kDecode, read, in, rows), read))
            << size.inputs << " to " << size.outputs << ", " << rows << " rows, read " << int(read);
        const Floats last(in.end() - size.inputs, in.end());
        const Floats alone = run_add_linear(*backend_, linear, Phase::kDecode, read, last, 1);
        EXPECT_TRUE(same_bits(alone.data(), &all[all.size() - alone.size()], alone.size()));
      }
    }
  }
}

// Every code and scale shows in the product with a one-hot row, as for groups of 128.
TEST_P(LinearOps, PlanesOfGroupsOf64HoldTheirCodes) {
  for (const Size size : {Size{48, 80}, Size{200, 33}, Size{512, 17}}) {
    const Matrix matrix(size.outputs, size.inputs, DType::kBF16, 6);
    const TestCodes codes(matrix, 64);
    const TestLinear linear(*backend_, matrix, {}, 64);
    for (int hot = 0; hot < size.inputs; hot += 7) {
      Floats in(size.inputs, 0.0f);
      in[hot] = 1.0f;
      for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth}) {
        const Floats out = run_add_linear(*backend_, linear, Phase::kDecode, read, in, 1);
        for (int o = 0; o < size.outputs; ++o) {
          const std::uint8_t code = codes.get().codes[o * size.inputs + hot];
          const GroupScale group =
              codes.get().scales[o * weight_groups(size.inputs, 64) + hot / 64];
          const float scale = f16_to_f32(group.scale), offset = f16_to_f32(group.offset);
          const float expected = read == WeightRead::kUpper ? draft_value(code, scale, offset)
                                                            : target_value(code, scale, offset);
          ASSERT_NEAR(out[o], expected, 1e-5 + 1e-4 * std::abs(expected))
              << "input " << hot << ", output " << o << ", read " << int(read);
        }
      }
    }
  }
}

TEST_P(LinearOps, PlanesAreSmall) {
  EXPECT_EQ(backend_->plane_bytes(1408, 512, 64).upper, 1408u * (512 / 2 + 4 * 512 / 64));
  const auto bytes = backend_->plane_bytes(1408, 512);
  EXPECT_EQ(bytes.upper, 1408u * (512 / 2 + 4 * 512 / kWeightGroup));
  EXPECT_EQ(bytes.lower, 1408u * 512 / 2);
}

TEST_P(LinearOps, NanAndInfinityStayInTheirRowAndColumn) {
  Matrix matrix(80, 512, DType::kBF16, 2);
  matrix.set(3, 100, kNan);
  matrix.set(50, 511, kInfinity);
  const TestLinear linear(*backend_, matrix);
  const TestLinear expected_linear(*reference_, matrix);
  Floats in = normal_floats(5 * 512, 4);
  in[1 * 512 + 7] = kNan;
  in[3 * 512 + 511] = kInfinity;
  for (const WeightRead read : kReads) {
    const Floats out = run_add_linear(*backend_, linear, Phase::kDecode, read, in, 5);
    const Floats expected =
        run_add_linear(*reference_, expected_linear, Phase::kDecode, read, in, 5);
    for (int row = 0; row < 5; ++row) {
      for (int o = 0; o < 80; ++o) {
        // Whether an infinite activation gives infinity or NaN depends on how planes are summed.
        const int i = row * 80 + o;
        ASSERT_EQ(std::isfinite(out[i]), std::isfinite(expected[i])) << row << "," << o;
        if (read == WeightRead::kFull) {
          ASSERT_EQ(std::isnan(out[i]), std::isnan(expected[i])) << row << "," << o;
        }
      }
    }
  }
}

// --- gate_up and head ----------------------------------------------------------------------------

struct Mlp {
  Mlp(Backend& backend, int hidden, int intermediate)
      : hidden(hidden),
        intermediate(intermediate),
        norm_weight(normal_floats(hidden, 20)),
        gate(backend, Matrix(intermediate, hidden, DType::kBF16, 21)),
        up(backend, Matrix(intermediate, hidden, DType::kBF16, 22)) {}

  Floats run(Backend& backend, Phase phase, WeightRead read, const Floats& x, bool with_norm) {
    const int rows = static_cast<int>(x.size()) / hidden;
    const Guarded<float> in(backend, x);
    Guarded<float> out(backend, std::size_t(rows) * intermediate);
    const Norm norm{with_norm ? norm_weight.data() : nullptr, 1e-5f};
    backend.gate_up({phase, read, in.data(), rows, norm, gate.get(), up.get(), out.data()});
    EXPECT_TRUE(out.intact());
    return out.values();
  }
  Floats logits(Backend& backend, WeightRead read, const Floats& x) {
    const int rows = static_cast<int>(x.size()) / hidden;
    Guarded<float> out(backend, std::size_t(rows) * intermediate);
    backend.head({read, x.data(), rows, {norm_weight.data(), 1e-6f}, gate.get(), out.data()});
    EXPECT_TRUE(out.intact());
    return out.values();
  }

  int hidden, intermediate;
  Floats norm_weight;
  TestLinear gate, up;
};

const Size kMlpSizes[] = {{48, 80}, {80, 515}, {512, 176}};

TEST_P(LinearOps, GateUpIsNearTheReference) {
  for (const Size size : kMlpSizes) {
    Mlp mlp(*backend_, size.inputs, size.outputs);
    Mlp expected(*reference_, size.inputs, size.outputs);
    for (const int rows : kRows) {
      const Floats x = normal_floats(std::size_t(rows) * size.inputs, 30, 3.0f);
      for (const WeightRead read : kReads) {
        // A product of two projections: twice the relative error of one.
        const Floats a = mlp.run(*backend_, Phase::kDecode, read, x, true);
        const Floats b = expected.run(*reference_, Phase::kDecode, read, x, true);
        EXPECT_TRUE(read == WeightRead::kFull ? near(a, b, 2 * kFullError)
                                              : near_nmse(a, b, 2 * kPlanesNmse))
            << size.inputs << " to " << size.outputs << ", " << rows << " rows, read " << int(read);
      }
      EXPECT_TRUE(near(mlp.run(*backend_, Phase::kPrefill, WeightRead::kFull, x, true),
                       expected.run(*reference_, Phase::kPrefill, WeightRead::kFull, x, true),
                       2 * kFullError))
          << size.inputs << " to " << size.outputs << ", " << rows << " rows of prefill";
    }
  }
}

// Without a norm the inputs arrive as they are: gates of +-300, where exp overflows.
TEST_P(LinearOps, SiluSurvivesLargeGates) {
  Mlp mlp(*backend_, 48, 80);
  Mlp expected(*reference_, 48, 80);
  const Floats x = normal_floats(3 * 48, 30, 100.0f);
  EXPECT_TRUE(near(mlp.run(*backend_, Phase::kDecode, WeightRead::kFull, x, false),
                   expected.run(*reference_, Phase::kDecode, WeightRead::kFull, x, false),
                   2 * kFullError));
}

TEST_P(LinearOps, GateUpRowsAloneHaveTheSameBits) {
  for (const Size size : kMlpSizes) {
    Mlp mlp(*backend_, size.inputs, size.outputs);
    const Floats x = normal_floats(std::size_t{17} * size.inputs, 30);
    for (const WeightRead read : kReads) {
      const Floats all = mlp.run(*backend_, Phase::kDecode, read, x, true);
      for (int row = 0; row < 17; ++row) {
        const auto begin = x.begin() + std::ptrdiff_t{row} * size.inputs;
        const Floats one =
            mlp.run(*backend_, Phase::kDecode, read, Floats(begin, begin + size.inputs), true);
        ASSERT_TRUE(same_bits(one.data(), &all[std::size_t(row) * size.outputs], one.size()));
      }
    }
  }
}

TEST_P(LinearOps, HeadIsNearTheReferenceAndRowsAloneHaveTheSameBits) {
  for (const Size size : kMlpSizes) {
    Mlp mlp(*backend_, size.inputs, size.outputs);
    Mlp expected(*reference_, size.inputs, size.outputs);
    for (const int rows : kRows) {
      const Floats x = normal_floats(std::size_t(rows) * size.inputs, 31);
      for (const WeightRead read : kReads) {
        const Floats all = mlp.logits(*backend_, read, x);
        EXPECT_TRUE(linear_near(all, expected.logits(*reference_, read, x), read));
        const Floats last = mlp.logits(*backend_, read, Floats(x.end() - size.inputs, x.end()));
        EXPECT_TRUE(same_bits(last.data(), &all[all.size() - last.size()], last.size()));
      }
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(LinearOps);

}  // namespace
}  // namespace quantspec
