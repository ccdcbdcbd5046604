// Memory, and ops that are matrix products: embed, add_linear, gate_up, head, and make_planes
// through them. Every backend against the reference, and against itself: a decode row alone and in
// company.
#include "backend/backend.h"

#include <cstdlib>
#include <limits>

#include "backend/cpu/cpu.h"
#include "backend/op_test_support.h"
#include "backend/reference/reference.h"
#include "base/error.h"
#ifdef QUANTSPEC_CUDA
#include "backend/cuda/cuda.h"
#endif

namespace quantspec {

std::vector<std::string> test_backends() {
  std::vector<std::string> names = cpu::supported_isas();
  names.insert(names.begin(), "reference");
#ifdef QUANTSPEC_CUDA
  if (cuda::unavailable(0).empty()) names.push_back("cuda");
#endif
  return names;
}

std::unique_ptr<Backend> make_test_backend(const std::string& name, int num_threads) {
  if (name == "reference") return reference::make_reference_backend(num_threads);
  if (name == "cuda") return make_backend({name});
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

struct Size {
  int inputs, outputs;
};
// Not multiples of vectors, groups or row blocks, and the sizes of pg-24m.
const Size kSizes[] = {{48, 80}, {80, 48}, {512, 96}, {512, 515}, {1408, 64}, {48, 1}};
constexpr int kRows[] = {1, 2, 5, 9, 17};
constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr WeightRead kReads[] = {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget};

Floats run_add_linear(Backend& backend, const TestLinear& linear, Phase phase, WeightRead read,
                      const Floats& in, int rows, float start = 0.0f) {
  const Guarded<float> x_in(backend, in);
  Guarded<float> x(backend, Floats(std::size_t(rows) * linear.get()->outputs(), start));
  backend.add_linear({phase, read, x_in.data(), rows, linear.get(), x.data()});
  EXPECT_TRUE(x.intact() && x_in.intact());
  EXPECT_TRUE(same_bits(x_in.values().data(), in.data(), in.size())) << "the input was changed";
  return x.values();
}

// --- memory --------------------------------------------------------------------------------------

class MemoryOps : public OpTest {};

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  const CounterRng rng(seed);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = std::byte(rng.bits(std::int64_t(i), RandomStream::kSample) & 255);
  }
  return bytes;
}

TEST_P(MemoryOps, AllocatedMemoryIsZeroedAndAligned) {
  for (const std::size_t bytes : {1, 63, 4097, 3 << 20}) {
    const Buffer buffer = backend_->allocate(bytes);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::vector<std::byte> read(bytes, std::byte{1});
    backend_->download(read.data(), buffer.data(), bytes);
    EXPECT_EQ(read, std::vector<std::byte>(bytes));
  }
  EXPECT_EQ(backend_->allocate(0).size(), 0u);
  EXPECT_GT(backend_->available_bytes(), std::size_t{1} << 20);
}

// Any size, between any bytes; what was uploaded may be overwritten at once.
TEST_P(MemoryOps, CopiesMoveBytesAndNoOthers) {
  for (const std::size_t count : {0, 1, 3, 64, 4095, 100003}) {
    std::vector<std::byte> expected = random_bytes(2 * count + 7, count);
    Guarded<std::byte> memory(*backend_, expected);
    std::vector<std::byte> fresh = random_bytes(count, count + 1);
    std::copy(fresh.begin(), fresh.end(), expected.begin() + 1);
    backend_->upload(memory.data() + 1, fresh.data(), count);
    std::fill(fresh.begin(), fresh.end(), std::byte{});
    const auto half = expected.begin() + std::ptrdiff_t(count) + 4;
    std::copy_n(expected.begin() + 1, count, half);
    backend_->copy(memory.data() + count + 4, memory.data() + 1, count);
    EXPECT_EQ(memory.values(), expected) << count;
    backend_->download(fresh.data(), memory.data() + count + 4, count);
    EXPECT_TRUE(std::equal(fresh.begin(), fresh.end(), half));
    EXPECT_TRUE(memory.intact());
  }
}

// What is copied to the host's memory may be overwritten at once, and comes back as it was.
TEST_P(MemoryOps, CopiesReachMemoryOfTheHostInTheirOrder) {
  constexpr std::size_t kCount = 300'007;
  const auto first = random_bytes(kCount, 1), second = random_bytes(kCount, 2);
  Guarded<std::byte> memory(*backend_, first), other(*backend_, second);
  Buffer host = backend_->allocate_on_host(2 * kCount);
  EXPECT_EQ(std::vector(host.data(), host.data() + host.size()),
            std::vector<std::byte>(2 * kCount));
  backend_->copy(host.data() + 1, memory.data(), kCount);
  backend_->copy(memory.data(), other.data(), kCount);
  backend_->copy(other.data(), host.data() + 1, kCount);
  backend_->copy(host.data() + 1, memory.data(), kCount);  // after it was read
  backend_->synchronize();
  EXPECT_EQ(memory.values(), second);
  EXPECT_EQ(other.values(), first);
  EXPECT_EQ(std::vector(host.data() + 1, host.data() + 1 + kCount), second);
  EXPECT_EQ(host.data()[0], std::byte{});
  EXPECT_EQ(host.data()[1 + kCount], std::byte{});
  EXPECT_EQ(backend_->allocate_on_host(0).size(), 0u);
}

// Nothing waits in between, as in a pass.
TEST_P(MemoryOps, OpsAndCopiesTakeEffectInTheirOrder) {
  const HostMatrix matrix(64, 64, DType::kF32, 1);
  const PlacedMatrix table(*backend_, matrix);
  Guarded<TokenId> token(*backend_, 1);
  Guarded<float> out(*backend_, 64), kept(*backend_, 32 * 64);
  for (TokenId i = 0; i < 32; ++i) {
    backend_->upload(token.data(), &i, sizeof(TokenId));
    const SequenceRows rows{0, 1, 0, {}, token.data()};
    backend_->embed({{&rows, 1}, table.view(), out.data()});
    backend_->copy(kept.data() + 64 * i, out.data(), 64 * sizeof(float));
  }
  backend_->synchronize();
  EXPECT_TRUE(token.intact() && out.intact() && kept.intact());
  const Floats values = kept.values();
  for (int i = 0; i < 32 * 64; ++i) ASSERT_EQ(values[i], matrix.at(i / 64, i % 64));
}

// --- embed and add_linear ------------------------------------------------------------------------

class LinearOps : public OpTest {
 protected:
  // While decoding; `factor`: of several products.
  testing::AssertionResult linear_near(const Floats& actual, const Floats& expected,
                                       WeightRead read, double factor = 1) const {
    return read == WeightRead::kTarget
               ? near(actual, expected, factor * tolerances_.decode)
               : near_nmse(actual, expected, factor * tolerances_.planes_nmse);
  }
};

// Rows of two sequences, of rounds or not: their tokens, and the angles of their positions.
struct TestRows {
  TestRows(Backend& backend, bool of_rounds)
      : tokens(backend, std::vector<TokenId>{3, 0, 96, 3, 41}),
        sequences{{0, 3, 11, {}, tokens.data(), 10}, {3, 2, 17, {}, tokens.data() + 3, 17}} {
    if (of_rounds) lanes.emplace(backend, sequences, true);
  }
  bool intact() const { return tokens.intact() && (!lanes || lanes->intact()); }

  Guarded<TokenId> tokens;
  std::vector<SequenceRows> sequences;
  std::optional<TestLanes> lanes;
};
constexpr TokenId kTokensOfRows[] = {0, 96, 3, 3, 41};
constexpr int kPositionsOfRows[] = {11, 12, 13, 17, 18};

TEST_P(LinearOps, EmbedCopiesRowsOfTheTable) {
  const TestRows rows(*backend_, false);
  for (const DType dtype : kDtypes) {
    for (const int hidden : {1, 48, 65, 80, 512}) {
      const HostMatrix matrix(97, hidden, dtype, 1);
      const PlacedMatrix table(*backend_, matrix);
      Guarded<float> out(*backend_, std::size_t{5} * hidden);
      backend_->embed({rows.sequences, table.view(), out.data()});
      EXPECT_TRUE(out.intact() && rows.intact());
      const Floats values = out.values();
      for (int i = 0; i < 5 * hidden; ++i) {
        ASSERT_EQ(values[i], matrix.at(kTokensOfRows[i / hidden], i % hidden));
      }
    }
  }
}

TEST_P(LinearOps, EmbedCopiesTheAnglesOfPositions) {
  const HostMatrix matrix(97, 48, DType::kF16, 1);
  const PlacedMatrix table(*backend_, matrix);
  for (const bool of_rounds : {false, true}) {
    const TestRows rows(*backend_, of_rounds);
    for (const int half : {32, 40, 128}) {
      const Floats cosines = normal_floats(std::size_t{19} * half, 2);
      const Floats sines = normal_floats(cosines.size(), 3);
      const Guarded<float> cos_table(*backend_, cosines), sin_table(*backend_, sines);
      const std::size_t count = std::size_t{5} * half;
      Guarded<float> out(*backend_, 5 * 48), cos(*backend_, count), sin(*backend_, count);
      backend_->embed({.sequences = rows.sequences,
                       .table = table.view(),
                       .out = out.data(),
                       .page_size = 32,
                       .num_rows = 5,
                       .cos_table = cos_table.data(),
                       .sin_table = sin_table.data(),
                       .half = half,
                       .cos = cos.data(),
                       .sin = sin.data()});
      EXPECT_TRUE(out.intact() && cos.intact() && sin.intact() && rows.intact());
      const Floats values = out.values(), cos_values = cos.values(), sin_values = sin.values();
      for (int row = 0; row < 5; ++row) {
        const int at = row * half, from = kPositionsOfRows[row] * half;
        EXPECT_EQ(values[row * 48], matrix.at(kTokensOfRows[row], 0)) << row;
        EXPECT_TRUE(same_bits(&cos_values[at], &cosines[from], half)) << row;
        EXPECT_TRUE(same_bits(&sin_values[at], &sines[from], half)) << row;
      }
    }
  }
}

TEST_P(LinearOps, AddLinearIsNearTheReference) {
  for (const Size size : kSizes) {
    for (const DType dtype : kDtypes) {
      const HostMatrix matrix(size.outputs, size.inputs, dtype, 2);
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
      const HostMatrix matrix(size.outputs, size.inputs, dtype, 2);
      const Floats bias = normal_floats(size.outputs, 3);
      const TestLinear linear(*backend_, matrix, bias);
      const TestLinear expected_linear(*reference_, matrix, bias);
      for (const int rows : {1, 33, 70}) {
        const Floats in = normal_floats(std::size_t(rows) * size.inputs, 4);
        EXPECT_TRUE(
            near(run_add_linear(*backend_, linear, Phase::kPrefill, WeightRead::kTarget, in, rows),
                 run_add_linear(*reference_, expected_linear, Phase::kPrefill, WeightRead::kTarget,
                                in, rows),
                 tolerances_.prefill(dtype)))
            << size.inputs << " to " << size.outputs << " " << name_of(dtype) << ", " << rows;
      }
    }
  }
}

TEST_P(LinearOps, DecodeRowsAloneHaveTheSameBits) {
  constexpr int kAllRows = 17;
  for (const Size size : kSizes) {
    for (const DType dtype : kDtypes) {
      const TestLinear linear(*backend_, HostMatrix(size.outputs, size.inputs, dtype, 2));
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

// As long as those of a large model's down projection, beside which a GPU's block has room for
// fewer stages of weights, or takes more.
TEST_P(LinearOps, LongRowsAreNearTheReferenceAndHaveTheSameBitsAlone) {
  for (const Size size : {Size{8400, 48}, Size{12420, 33}}) {
    const HostMatrix matrix(size.outputs, size.inputs, DType::kBF16, 2);
    const TestLinear linear(*backend_, matrix), expected_linear(*reference_, matrix);
    const Floats in = normal_floats(std::size_t{5} * size.inputs, 6);
    for (const WeightRead read : kReads) {
      const Floats all = run_add_linear(*backend_, linear, Phase::kDecode, read, in, 5);
      EXPECT_TRUE(linear_near(
          all, run_add_linear(*reference_, expected_linear, Phase::kDecode, read, in, 5), read))
          << size.inputs << " inputs, read " << int(read);
      for (const int rows : {1, 3, 4}) {
        const Floats some(in.begin(), in.begin() + std::ptrdiff_t{rows} * size.inputs);
        const Floats out = run_add_linear(*backend_, linear, Phase::kDecode, read, some, rows);
        EXPECT_TRUE(same_bits(out.data(), all.data(), out.size()))
            << size.inputs << " inputs, " << rows << " rows, read " << int(read);
      }
    }
  }
}

TEST_P(LinearOps, ThreadsDoNotChangeBits) {
  const auto single = make_test_backend(GetParam(), 1);
  const HostMatrix matrix(515, 512, DType::kBF16, 2);
  const TestLinear linear(*backend_, matrix);
  const TestLinear linear_single(*single, matrix);
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    for (const int rows : {1, 5, 70}) {
      const Floats in = normal_floats(std::size_t(rows) * 512, 4);
      for (const WeightRead read : kReads) {
        if (phase == Phase::kPrefill && read != WeightRead::kTarget) continue;
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
    HostMatrix matrix(size.outputs, size.inputs, DType::kBF16, 6);
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
  const HostMatrix matrix(80, 512, DType::kBF16, 2);
  const TestLinear both(*backend_, matrix);
  Guarded<std::byte> upper(*backend_, backend_->plane_bytes(80, 512, sliced_format()).upper);
  const PlacedMatrix placed(*backend_, matrix);
  backend_->make_planes(placed.view(), sliced_format(), upper.data(), nullptr);
  EXPECT_TRUE(upper.intact());
  const Linear linear{placed.view(), {sliced_format(), 80, 512, upper.data()}};
  const Floats in = normal_floats(5 * 512, 4);
  const Guarded<float> placed_in(*backend_, in);
  Guarded<float> x(*backend_, Floats(5 * 80, 0.0f));
  backend_->add_linear(
      {Phase::kDecode, WeightRead::kUpper, placed_in.data(), 5, &linear, x.data()});
  const Floats expected =
      run_add_linear(*backend_, both, Phase::kDecode, WeightRead::kUpper, in, 5);
  EXPECT_TRUE(same_bits(x.values().data(), expected.data(), expected.size()));
}

TEST_P(LinearOps, ImportedCodesGiveThePlanesThatAreMade) {
  for (const Size size : {Size{48, 80}, Size{200, 33}, Size{512, 17}, Size{1408, 512}}) {
    const HostMatrix matrix(size.outputs, size.inputs, DType::kF16, 6);
    const TestLinear made(*backend_, matrix);
    const auto bytes = backend_->plane_bytes(size.outputs, size.inputs, sliced_format());
    Guarded<std::byte> upper(*backend_, bytes.upper), lower(*backend_, bytes.lower);
    backend_->import_planes(TestCodes(matrix, kWeightGroup).get(), upper.data(), lower.data());
    EXPECT_TRUE(upper.intact() && lower.intact());
    EXPECT_TRUE(upper.values() == made.upper()) << size.inputs;
    EXPECT_TRUE(lower.values() == made.lower()) << size.inputs;

    Guarded<std::byte> alone(*backend_, bytes.upper);
    backend_->import_planes(TestCodes(matrix, kWeightGroup).get(), alone.data(), nullptr);
    EXPECT_TRUE(alone.intact());
    EXPECT_TRUE(alone.values() == made.upper()) << size.inputs;
  }
}

TEST_P(LinearOps, GroupsOf64AreNearTheReference) {
  for (const Size size : kSizes) {
    const HostMatrix matrix(size.outputs, size.inputs, DType::kBF16, 2);
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
    const HostMatrix matrix(size.outputs, size.inputs, DType::kBF16, 6);
    const TestCodes codes(matrix, 64);
    const TestLinear linear(*backend_, matrix, {}, 64);
    for (int hot = 0; hot < size.inputs; hot += 7) {
      Floats in(size.inputs, 0.0f);
      in[hot] = 1.0f;
      for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth}) {
        const Floats out = run_add_linear(*backend_, linear, Phase::kDecode, read, in, 1);
        for (int o = 0; o < size.outputs; ++o) {
          const std::uint8_t code = codes.code(o, hot);
          const GroupScale group = codes.scale(o, hot);
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
  const auto expect_bytes = [&](std::size_t bytes, std::size_t needed) {
    EXPECT_GE(bytes, needed);
    EXPECT_LE(double(bytes), tolerances_.plane_padding * double(needed));
  };
  expect_bytes(backend_->plane_bytes(1408, 512, sliced_format(64)).upper,
               1408 * (512 / 2 + 4 * 512 / 64));
  const auto bytes = backend_->plane_bytes(1408, 512, sliced_format());
  expect_bytes(bytes.upper, 1408 * (512 / 2 + 4 * 512 / kWeightGroup));
  expect_bytes(bytes.lower, 1408 * 512 / 2);
}

TEST_P(LinearOps, NanAndInfinityStayInTheirRowAndColumn) {
  HostMatrix matrix(80, 512, DType::kBF16, 2);
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
        // Whether an infinite activation gives infinity or NaN depends on how planes are summed,
        // and on whether an activation is one number (on a GPU it is the sum of two).
        const int i = row * 80 + o;
        ASSERT_EQ(std::isfinite(out[i]), std::isfinite(expected[i])) << row << "," << o;
        if (read == WeightRead::kTarget && GetParam() != "cuda") {
          ASSERT_EQ(std::isnan(out[i]), std::isnan(expected[i])) << row << "," << o;
        }
      }
    }
  }
}

// --- gate_up and head ----------------------------------------------------------------------------

struct Mlp {
  Mlp(Backend& backend, Size size)
      : backend(backend),
        norm_weight(backend, normal_floats(size.inputs, 20)),
        gate(backend, HostMatrix(size.outputs, size.inputs, DType::kBF16, 21)),
        up(backend, HostMatrix(size.outputs, size.inputs, DType::kBF16, 22)) {}

  int rows_of(const Floats& x) const { return static_cast<int>(x.size()) / gate.get()->inputs(); }
  std::size_t outputs() const { return std::size_t(gate.get()->outputs()); }
  Floats run(Phase phase, WeightRead read, const Floats& x, bool with_norm = true) const {
    const Guarded<float> in(backend, x);
    Guarded<float> out(backend, rows_of(x) * outputs());
    const Norm norm{with_norm ? norm_weight.data() : nullptr, 1e-5f};
    backend.gate_up({phase, read, in.data(), rows_of(x), norm, gate.get(), up.get(), out.data()});
    EXPECT_TRUE(out.intact());
    return out.values();
  }
  Floats logits(WeightRead read, const Floats& x) const {
    const Guarded<float> in(backend, x);
    Guarded<float> out(backend, rows_of(x) * outputs());
    backend.head(
        {read, in.data(), rows_of(x), {norm_weight.data(), 1e-6f}, gate.get(), out.data()});
    EXPECT_TRUE(out.intact());
    return out.values();
  }

  Backend& backend;
  Guarded<float> norm_weight;
  TestLinear gate, up;
};

const Size kMlpSizes[] = {{48, 80}, {80, 515}, {512, 176}};

// A product of two projections: while decoding, twice the error of one. In prefill, errors may be
// so large that those of large gates with large ups stand out; their rms is below one projection's
// largest.
double prefill_nmse(const Tolerances& tolerances) {
  return std::pow(tolerances.prefill(DType::kBF16), 2);
}

TEST_P(LinearOps, GateUpIsNearTheReference) {
  for (const Size size : kMlpSizes) {
    const Mlp mlp(*backend_, size), expected(*reference_, size);
    for (const int rows : kRows) {
      const Floats x = normal_floats(std::size_t(rows) * size.inputs, 30, 3.0f);
      for (const WeightRead read : kReads) {
        EXPECT_TRUE(linear_near(mlp.run(Phase::kDecode, read, x),
                                expected.run(Phase::kDecode, read, x), read, 2))
            << size.inputs << " to " << size.outputs << ", " << rows << " rows, read " << int(read);
      }
      EXPECT_TRUE(near_nmse(mlp.run(Phase::kPrefill, WeightRead::kTarget, x),
                            expected.run(Phase::kPrefill, WeightRead::kTarget, x),
                            prefill_nmse(tolerances_)))
          << size.inputs << " to " << size.outputs << ", " << rows << " rows of prefill";
    }
  }
}

// Without a norm the inputs arrive as they are: gates of +-300, where exp overflows.
TEST_P(LinearOps, SiluSurvivesLargeGates) {
  const Mlp mlp(*backend_, {48, 80}), expected(*reference_, {48, 80});
  const Floats x = normal_floats(3 * 48, 30, 100.0f);
  EXPECT_TRUE(near(mlp.run(Phase::kDecode, WeightRead::kTarget, x, false),
                   expected.run(Phase::kDecode, WeightRead::kTarget, x, false),
                   2 * tolerances_.decode));
  EXPECT_TRUE(near_nmse(mlp.run(Phase::kPrefill, WeightRead::kTarget, x, false),
                        expected.run(Phase::kPrefill, WeightRead::kTarget, x, false),
                        prefill_nmse(tolerances_)));
}

TEST_P(LinearOps, GateUpRowsAloneHaveTheSameBits) {
  for (const Size size : kMlpSizes) {
    const Mlp mlp(*backend_, size);
    const Floats x = normal_floats(std::size_t{17} * size.inputs, 30);
    for (const WeightRead read : kReads) {
      const Floats all = mlp.run(Phase::kDecode, read, x);
      for (int row = 0; row < 17; ++row) {
        const auto begin = x.begin() + std::ptrdiff_t{row} * size.inputs;
        const Floats one = mlp.run(Phase::kDecode, read, Floats(begin, begin + size.inputs));
        ASSERT_TRUE(same_bits(one.data(), &all[std::size_t(row) * size.outputs], one.size()));
      }
    }
  }
}

TEST_P(LinearOps, HeadIsNearTheReferenceAndRowsAloneHaveTheSameBits) {
  for (const Size size : kMlpSizes) {
    const Mlp mlp(*backend_, size), expected(*reference_, size);
    for (const int rows : kRows) {
      const Floats x = normal_floats(std::size_t(rows) * size.inputs, 31);
      for (const WeightRead read : kReads) {
        const Floats all = mlp.logits(read, x);
        EXPECT_TRUE(linear_near(all, expected.logits(read, x), read));
        const Floats last = mlp.logits(read, Floats(x.end() - size.inputs, x.end()));
        EXPECT_TRUE(same_bits(last.data(), &all[all.size() - last.size()], last.size()));
      }
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(MemoryOps);
QUANTSPEC_FOR_ALL_BACKENDS(LinearOps);

}  // namespace
}  // namespace quantspec
