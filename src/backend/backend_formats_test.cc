// Ops over planes of every format of quant/weight_format.h, as targets and drafts read them: every
// backend against decode_row() and the reference, and a row alone against itself in company.
#include <algorithm>

#include "backend/op_test_support.h"
#include "base/expect_error.h"

namespace quantspec {
namespace {

constexpr WeightRead kReads[] = {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget};

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, NamedFormat>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
}

class FormatOps : public testing::TestWithParam<std::tuple<std::string, NamedFormat>> {
 protected:
  void SetUp() override {
    if (name() != "cuda" || std::get<1>(GetParam()).is_made()) return;
    EXPECT_THROW(backend_->plane_bytes(16, 256, format()), Error);
    GTEST_SKIP() << "nothing makes this format yet";
  }
  const std::string& name() const { return std::get<0>(GetParam()); }
  const WeightFormat& format() const { return std::get<1>(GetParam()).format; }
  // Errors of a target are those of activations of 15 bits; of a draft, of 8 bits. Codes with large
  // offsets make these larger than they are elsewhere.
  double decode_nmse(WeightRead read) const {
    return read == WeightRead::kUpper ? 2 * tolerances_.planes_nmse : 1e-6;
  }
  TestLinear linear(Backend& backend, int outputs, int inputs, unsigned seed = 1) const {
    return TestLinear::random(backend, format(), outputs, inputs, seed,
                              normal_floats(outputs, seed));
  }
  static Floats add(Backend& backend, const TestLinear& linear, Phase phase, WeightRead read,
                    const Floats& in) {
    const int rows = static_cast<int>(std::ssize(in) / linear.get()->inputs());
    const Guarded<float> x_in(backend, in);
    Guarded<float> x(backend, Floats(std::size_t(rows) * linear.get()->outputs(), 0.5f));
    backend.add_linear({phase, read, x_in.data(), rows, linear.get(), x.data()});
    EXPECT_TRUE(x.intact() && x_in.intact());
    return x.values();
  }

  std::unique_ptr<Backend> backend_ = make_test_backend(name(), 3);
  std::unique_ptr<Backend> reference_ = make_test_backend("reference", 2);
  const Tolerances tolerances_ = tolerances_of(name());
};

TEST_P(FormatOps, EmbeddingsHaveTheBitsOfDecodeRow) {
  for (const int width : {8, 40, 100, 256, 304, 1280}) {
    RandomCodes codes(format(), 50, width, 8);
    const TestLinear table(*backend_, codes.matrix());
    const std::vector<TokenId> tokens = {0, 49, 17, 16, 3, 49, 31, 8};
    const Guarded<TokenId> placed(*backend_, tokens);
    const int rows = static_cast<int>(tokens.size());
    Guarded<float> out(*backend_, std::size_t(rows) * width);
    const SequenceRows sequence{0, rows, 0, {}, placed.data()};
    backend_->embed({.sequences = {&sequence, 1}, .table = table.get()->target, .out = out.data()});
    EXPECT_TRUE(out.intact());
    const Floats values = out.values();
    for (int i = 0; i < rows; ++i) {
      const Floats expected = codes.weights(tokens[i]);
      ASSERT_TRUE(same_bits(&values[std::size_t(i) * width], expected.data(), expected.size()))
          << "row " << tokens[i] << " of " << width;
    }
  }
}

// Of the threads that read, one fails; afterwards the matrix can be imported.
TEST_P(FormatOps, AReadThatFailsInTheMiddleIsTheErrorOfTheImport) {
  RandomCodes codes(format(), 515, 256, 8);
  const CodedMatrix coded = codes.matrix();
  const PlaneBytes bytes = backend_->plane_bytes(coded.rows, coded.cols, format());
  Guarded<std::byte> upper(*backend_, bytes.upper), lower(*backend_, bytes.lower);
  std::byte* const below = bytes.lower == 0 ? nullptr : lower.data();
  CodedMatrix corrupt = coded;
  corrupt.read = [&](int row, const RowCodes& out) {
    if (row == 300) fail(ErrorKind::kCorruptFile, "row {} is corrupt", row);
    coded.read(row, out);
  };
  for (int i = 0; i < 3; ++i) {
    expect_error(ErrorKind::kCorruptFile, {"row 300 is corrupt"},
                 [&] { backend_->import_planes(corrupt, upper.data(), below); });
  }
  backend_->import_planes(coded, upper.data(), below);
  const TestLinear expected(*backend_, coded);
  EXPECT_TRUE(upper.intact() && lower.intact());
  EXPECT_TRUE(upper.values() == expected.upper() && lower.values() == expected.lower());
}

TEST_P(FormatOps, ProductsAreNearTheReference) {
  for (const int inputs : {8, 100, 256, 304, 1280}) {
    for (const int outputs : {17, 160}) {  // of fewer, sums may be all but zero
      const TestLinear actual = linear(*backend_, outputs, inputs);
      const TestLinear expected = linear(*reference_, outputs, inputs);
      for (const int rows : {1, 2, 3, 7, 17}) {
        const Floats in = normal_floats(std::size_t(rows) * inputs, 4);
        for (const WeightRead read : kReads) {
          EXPECT_TRUE(near_nmse(add(*backend_, actual, Phase::kDecode, read, in),
                                add(*reference_, expected, Phase::kDecode, read, in),
                                decode_nmse(read)))
              << inputs << " to " << outputs << ", " << rows << " rows, read " << int(read);
        }
      }
    }
  }
}

TEST_P(FormatOps, ARowHasTheSameBitsWhateverIsBesideIt) {
  constexpr int kInputs = 800, kOutputs = 90, kRows = 19;
  const TestLinear weights = linear(*backend_, kOutputs, kInputs);
  const Floats in = normal_floats(std::size_t{kRows} * kInputs, 5);
  for (const WeightRead read : kReads) {
    const Floats all = add(*backend_, weights, Phase::kDecode, read, in);
    for (int rows = 1; rows < kRows; ++rows) {
      const int first = (kRows - rows) / 2;
      const auto begin = in.begin() + std::ptrdiff_t{first} * kInputs;
      const Floats part(begin, begin + std::ptrdiff_t{rows} * kInputs);
      const Floats out = add(*backend_, weights, Phase::kDecode, read, part);
      ASSERT_TRUE(same_bits(out.data(), &all[std::size_t(first) * kOutputs], out.size()))
          << rows << " rows from " << first << ", read " << int(read);
    }
  }
}

// More outputs than a GPU unpacks at a time, too.
TEST_P(FormatOps, PrefillIsNearTheReference) {
  for (const auto& [inputs, outputs] : {std::pair{100, 37}, {512, 160}, {64, 4139}}) {
    const TestLinear actual = linear(*backend_, outputs, inputs);
    const TestLinear expected = linear(*reference_, outputs, inputs);
    const Floats in = normal_floats(std::size_t{40} * inputs, 6);
    // What decoding rounds less of: prefill may round weights as well as activations.
    EXPECT_TRUE(near_nmse(add(*backend_, actual, Phase::kPrefill, WeightRead::kTarget, in),
                          add(*reference_, expected, Phase::kPrefill, WeightRead::kTarget, in),
                          tolerances_.prefill_rounds ? 1e-5 : 1e-9))
        << inputs << " to " << outputs;
  }
}

// Gate and up of two formats, as files mix them, and a head.
TEST_P(FormatOps, MixedFormatsAreNearTheReferenceAndRowsAloneHaveTheSameBits) {
  constexpr int kInputs = 512, kInner = 176, kRows = 9;
  const WeightFormat others[] = {dense_format(DType::kBF16), dense_format(DType::kF32),
                                 sliced_format(), format()};
  const Floats x = normal_floats(std::size_t{kRows} * kInputs, 30, 3.0f);
  for (const WeightFormat& other : others) {
    const auto run = [&](Backend& backend, WeightRead read, Phase phase, const Floats& in) {
      const TestLinear gate = linear(backend, kInner, kInputs);
      const TestLinear up = TestLinear::random(backend, other, kInner, kInputs, 2);
      const Guarded<float> weight(backend, normal_floats(kInputs, 20)), placed(backend, in);
      const int rows = static_cast<int>(std::ssize(in) / kInputs);
      const std::size_t count = std::size_t(rows) * kInner;
      Guarded<float> out(backend, count), logits(backend, count);
      const Norm norm{weight.data(), 1e-5f};
      backend.gate_up({phase, read, placed.data(), rows, norm, gate.get(), up.get(), out.data()});
      backend.head({read, placed.data(), rows, norm, gate.get(), logits.data()});
      EXPECT_TRUE(out.intact() && logits.intact());
      return std::pair(out.values(), logits.values());
    };
    for (const WeightRead read : kReads) {
      const auto [out, logits] = run(*backend_, read, Phase::kDecode, x);
      const auto [expected, expected_logits] = run(*reference_, read, Phase::kDecode, x);
      // A product of two projections, one of which may be of planes made of elements.
      EXPECT_TRUE(near_nmse(out, expected, 2 * decode_nmse(read))) << int(read);
      EXPECT_TRUE(near_nmse(logits, expected_logits, decode_nmse(read))) << int(read);
      const Floats last(x.end() - kInputs, x.end());
      const auto [one, one_logits] = run(*backend_, read, Phase::kDecode, last);
      EXPECT_TRUE(same_bits(one.data(), &out[out.size() - kInner], kInner)) << int(read);
      EXPECT_TRUE(same_bits(one_logits.data(), &logits[logits.size() - kInner], kInner));
    }
    EXPECT_TRUE(near_nmse(run(*backend_, WeightRead::kTarget, Phase::kPrefill, x).first,
                          run(*reference_, WeightRead::kTarget, Phase::kPrefill, x).first,
                          tolerances_.prefill_rounds ? 1e-4 : 1e-8));
  }
}

TEST_P(FormatOps, PlanesAreAtMost5PercentLargerThanTheFile) {
  const double file_bits = std::get<1>(GetParam()).file_bits;
  if (file_bits == 0 || name() == "reference") return;
  const PlaneBytes bytes = backend_->plane_bytes(4096, 2048, format());
  const double bits = 8.0 * static_cast<double>(bytes.upper + bytes.lower) / (4096.0 * 2048.0);
  EXPECT_LE(bits, 1.05 * file_bits);
  EXPECT_GE(bits, file_bits);
}

INSTANTIATE_TEST_SUITE_P(Backends, FormatOps,
                         testing::Combine(testing::ValuesIn(test_backends()),
                                          testing::ValuesIn(kNamedFormats)),
                         test_name);

class OtherFormats : public OpTest {};

TEST_P(OtherFormats, AreRefusedByName) {
  if (GetParam() == "reference") return;  // it reads any
  for (const WeightFormat& format :
       {WeightFormat{.bits = 3, .group = 32, .block = 32},
        WeightFormat{.bits = 4, .group = 256, .block = 256},
        WeightFormat{.bits = 4, .group = 32, .block = 128},
        WeightFormat{.bits = 8, .group = 32, .block = 32, .table = CodeTable::kIq4}}) {
    try {
      backend_->plane_bytes(16, 256, format);
      ADD_FAILURE() << format.bits << " bits, group " << format.group;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupportedModel);
      EXPECT_NE(std::string(error.what()).find("groups of"), std::string::npos) << error.what();
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(OtherFormats);

}  // namespace
}  // namespace quantspec
