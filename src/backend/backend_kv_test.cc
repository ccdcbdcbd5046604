// qkv, and what fills, moves, quantizes and loads K and V, of every backend against the reference.
#include <algorithm>
#include <optional>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

class KvOps : public OpTest {
 protected:
  testing::AssertionResult qkv_near(const struct QkvResult& actual,
                                    const struct QkvResult& expected, const struct QkvCase& c,
                                    Phase phase, WeightRead read) const;
  void quantize_layer(const KvShape& shape, int layer, FullKv source, int first_position,
                      std::span<const PagePlanes> pages) const {
    backend_->quantize_pages(shape, layer, {&source, 1}, first_position, pages);
  }
};

// --- qkv -----------------------------------------------------------------------------------------

struct QkvCase {
  int hidden, num_heads;
  KvShape shape;
  bool bias, head_norms;
  WeightFormat formats[3] = {kElements, kElements, kElements};  // of queries, keys and values

  static constexpr WeightFormat kElements = dense_format(DType::kBF16);
  bool coded() const {
    return !std::ranges::all_of(formats, [](const WeightFormat& f) { return f.dense(); });
  }
};

constexpr WeightFormat kQ8{.bits = 8, .group = 32, .block = 32, .zero = 128};
constexpr WeightFormat kQ4K{.bits = 4, .group = 32, .block = 256, .has_offset = true};
constexpr WeightFormat kQ6K{.bits = 6, .group = 16, .block = 256, .zero = 32};

const QkvCase kQkvCases[] = {
    {48, 2, {1, 2, 64, 32}, true, false},
    {80, 3, {1, 1, 80, 32}, false, true},
    {512, 6, {1, 2, 96, 64}, false, false},
    {512, 4, {1, 4, 128, 128}, true, true},
    {80, 4, {1, 1, 256, 32}, false, true},
    {512, 4, {1, 2, 128, 64}, true, true, {kQ4K, kQ4K, kQ6K}},
    {512, 6, {1, 2, 96, 64}, true, false, {sliced_format(), sliced_format(), sliced_format()}},
    {96, 3, {1, 1, 80, 32}, false, true, {kQ8, dense_format(DType::kBF16), sliced_format()}},
    {80,
     2,
     {1, 2, 64, 32},
     true,
     false,
     {dense_format(DType::kF32), dense_format(DType::kF16), dense_format(DType::kBF16)}},
};

// Rows of one sequence in a call.
struct Span {
  int rows, first_position;
};

struct QkvResult {
  Floats q;
  std::vector<Floats> kv;  // [sequence, ring position, kv head]: key then value
};

struct QkvSetup {
  QkvSetup(Backend& backend, const QkvCase& c)
      : backend(backend),
        c(c),
        norm(backend, normal_floats(c.hidden, 1)),
        q_norm(backend, normal_floats(c.shape.head_dim, 2)),
        k_norm(backend, normal_floats(c.shape.head_dim, 3)),
        q(make(c.formats[0], c.num_heads, 4)),
        k(make(c.formats[1], c.shape.num_kv_heads, 5)),
        v(make(c.formats[2], c.shape.num_kv_heads, 6)) {}

  TestLinear make(const WeightFormat& format, int heads, unsigned seed) const {
    const int outputs = heads * c.shape.head_dim;
    return TestLinear::random(backend, format, outputs, c.hidden, seed,
                              c.bias ? normal_floats(outputs, seed + 10) : Floats{});
  }

  // x [rows, hidden]; the angles of a row depend on its position alone.
  QkvResult run(Phase phase, WeightRead read, const Floats& x, const std::vector<Span>& spans,
                bool want_q = true, bool of_rounds = false) {
    const int rows = static_cast<int>(x.size()) / c.hidden, half = c.shape.head_dim / 2;
    Floats cosines, sines;
    std::vector<std::unique_ptr<TestFullKv>> rings;
    std::vector<SequenceRows> sequences;
    int first_row = 0;
    for (const Span& span : spans) {
      rings.push_back(std::make_unique<TestFullKv>(backend, c.shape, 2 * c.shape.page_size));
      sequences.push_back(
          {first_row, span.rows, span.first_position, {{}, rings.back()->get(), 0}});
      first_row += span.rows;
      for (int i = 0; i < span.rows; ++i) {
        for (int j = 0; j < half; ++j) {
          cosines.push_back(std::cos((span.first_position + i) / (1.0f + j)));
          sines.push_back(std::sin((span.first_position + i) / (1.0f + j)));
        }
      }
    }
    cosines.resize(std::size_t(rows) * half, 1.0f);
    sines.resize(cosines.size(), 0.0f);
    const Guarded<float> in(backend, x), cos(backend, cosines), sin(backend, sines);
    std::optional<TestRounds> rounds;
    if (of_rounds) {
      rounds.emplace(backend, sequences, c.shape, read != WeightRead::kUpper);
    }
    Guarded<float> q_out(backend, std::size_t(rows) * c.num_heads * c.shape.head_dim);
    const auto head_norm = [&](const Guarded<float>& w) {
      return Norm{c.head_norms ? w.data() : nullptr, 1e-6f};
    };
    backend.qkv({phase, read, c.num_heads, c.shape, in.data(), rows, Norm{norm.data(), 1e-5f},
                 q.get(), k.get(), v.get(), head_norm(q_norm), head_norm(k_norm), cos.data(),
                 sin.data(), want_q ? q_out.data() : nullptr, sequences});
    EXPECT_TRUE(q_out.intact() && (!rounds || rounds->intact()));
    QkvResult result{want_q ? q_out.values() : Floats{}, {}};
    for (const auto& ring : rings) {
      EXPECT_TRUE(ring->intact());
      for (int p = 0; p < 2 * c.shape.page_size; ++p) {
        for (int h = 0; h < c.shape.num_kv_heads; ++h) result.kv.push_back(ring->read(h, p));
      }
    }
    return result;
  }

  Backend& backend;
  QkvCase c;
  Guarded<float> norm, q_norm, k_norm;
  TestLinear q, k, v;
};

Floats joined(const std::vector<Floats>& parts) {
  Floats all;
  for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Slots that no row writes stay NaN in both, which same_special() sees. K and V are rounded to fp16
// when stored, off by 2^-11 of themselves at most, and no value here is larger than 8 rms.
testing::AssertionResult KvOps::qkv_near(const QkvResult& actual, const QkvResult& expected,
                                         const QkvCase& c, Phase phase, WeightRead read) const {
  // Codes may be multiplied with activations of 15 bits.
  const bool full = read == WeightRead::kTarget && (phase == Phase::kPrefill || !c.coded());
  // Head norms have weights of up to 3 rms, which errors get too.
  const double error = phase == Phase::kDecode ? tolerances_.decode
                       : c.coded()             ? 2 * tolerances_.prefill_of_codes()
                                               : 2 * tolerances_.prefill(DType::kBF16);
  const auto is_near = [&](const Floats& a, const Floats& b, double stored) {
    return full ? near(a, b, error + stored) : near_nmse(a, b, tolerances_.planes_nmse);
  };
  if (auto q = is_near(actual.q, expected.q, 0); !q) return q << " in Q";
  return is_near(joined(actual.kv), joined(expected.kv), 8 * 0x1p-11) << " in K and V";
}

TEST_P(KvOps, QkvIsNearTheReference) {
  for (const QkvCase& c : kQkvCases) {
    QkvSetup setup(*backend_, c);
    QkvSetup expected(*reference_, c);
    const int ring = 2 * c.shape.page_size;
    // From the start; across the end of the ring at several places; unequal sequences.
    const std::vector<Span> calls[] = {{{1, 0}},          {{9, 3}},
                                       {{2, ring - 1}},   {{5, ring - 2}},
                                       {{17, ring - 10}}, {{3, 7 * ring - 1}, {1, 0}, {5, 100}}};
    for (const auto& spans : calls) {
      int rows = 0;
      for (const Span& span : spans) rows += span.rows;
      const Floats x = normal_floats(std::size_t(rows) * c.hidden, 7, 2.0f);
      for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
        EXPECT_TRUE(qkv_near(setup.run(Phase::kDecode, read, x, spans),
                             expected.run(Phase::kDecode, read, x, spans), c, Phase::kDecode, read))
            << "head_dim " << c.shape.head_dim << ", " << rows << " rows, read " << int(read);
      }
      EXPECT_TRUE(qkv_near(setup.run(Phase::kPrefill, WeightRead::kTarget, x, spans),
                           expected.run(Phase::kPrefill, WeightRead::kTarget, x, spans), c,
                           Phase::kPrefill, WeightRead::kTarget))
          << "head_dim " << c.shape.head_dim << ", " << rows << " rows of prefill";
    }
  }
}

TEST_P(KvOps, QkvRowsAloneHaveTheSameBits) {
  constexpr int kRows = 17;
  for (const QkvCase& c : kQkvCases) {
    QkvSetup setup(*backend_, c);
    const Floats x = normal_floats(std::size_t{kRows} * c.hidden, 7);
    const int first = 2 * c.shape.page_size - 3;
    for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
      const QkvResult all = setup.run(Phase::kDecode, read, x, {{kRows, first}});
      for (int row = 0; row < kRows; ++row) {
        const Floats one_x(x.begin() + row * c.hidden, x.begin() + (row + 1) * c.hidden);
        const QkvResult one = setup.run(Phase::kDecode, read, one_x, {{1, first + row}});
        ASSERT_TRUE(same_bits(one.q.data(), &all.q[row * one.q.size()], one.q.size()));
        const int kv_heads = c.shape.num_kv_heads;
        const int slot = (first + row) % (2 * c.shape.page_size) * kv_heads;
        for (int h = 0; h < kv_heads; ++h) ASSERT_EQ(one.kv[slot + h], all.kv[slot + h]);
      }
    }
  }
}

// Of a batch, whose sequences have 1 to 20 rows each.
TEST_P(KvOps, QkvOfManyRowsHasTheBitsOfFew) {
  for (const QkvCase& c : kQkvCases) {
    QkvSetup setup(*backend_, c);
    for (const int rows : {12, 18, 33, 49, 64, 150}) {
      const Floats x = normal_floats(std::size_t(rows) * c.hidden, 7);
      std::vector<Span> spans;
      for (int left = rows; left > 0; left -= spans.back().rows) {
        const int index = static_cast<int>(spans.size());
        spans.push_back({std::min(left, 1 + 7 * index % 17), 11 * index});
      }
      for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
        const QkvResult all = setup.run(Phase::kDecode, read, x, spans);
        auto q = all.q.begin();
        auto kv = all.kv.begin();
        auto in = x.begin();
        for (const Span& span : spans) {
          const auto end = in + std::ptrdiff_t{span.rows} * c.hidden;
          const QkvResult few = setup.run(Phase::kDecode, read, Floats(in, end), {span});
          ASSERT_TRUE(same_bits(few.q.data(), &*q, few.q.size())) << rows << ", read " << int(read);
          const Floats a = joined(few.kv), b = joined({kv, kv + std::ssize(few.kv)});
          ASSERT_TRUE(same_bits(a.data(), b.data(), a.size())) << rows << ", read " << int(read);
          q += std::ssize(few.q);
          kv += std::ssize(few.kv);
          in = end;
        }
      }
    }
  }
}

TEST_P(KvOps, QkvGivesOnlyQOrOnlyKv) {
  for (const QkvCase& c : kQkvCases) {
    QkvSetup setup(*backend_, c);
    const Floats x = normal_floats(std::size_t{2} * c.hidden, 7);
    // Position 0 turns by no angle, so that rows without a sequence get the same Q.
    const std::vector<Span> spans = {{1, 0}, {1, 0}};
    const QkvResult both = setup.run(Phase::kDecode, WeightRead::kTarget, x, spans);
    const QkvResult only_q = setup.run(Phase::kDecode, WeightRead::kTarget, x, {});
    const QkvResult only_kv = setup.run(Phase::kDecode, WeightRead::kTarget, x, spans, false);
    EXPECT_EQ(only_q.q, both.q);
    const Floats a = joined(only_kv.kv), b = joined(both.kv);
    EXPECT_TRUE(same_bits(a.data(), b.data(), a.size()));
  }
}

TEST_P(KvOps, RoundsSayTheSamePositions) {
  for (const QkvCase& c : kQkvCases) {
    QkvSetup setup(*backend_, c);
    const Floats x = normal_floats(std::size_t{9} * c.hidden, 7);
    const std::vector<Span> spans = {{3, 2 * c.shape.page_size - 1}, {1, 0}, {5, 100}};
    for (const WeightRead read : {WeightRead::kUpper, WeightRead::kTarget}) {
      const QkvResult a = setup.run(Phase::kDecode, read, x, spans);
      const QkvResult b = setup.run(Phase::kDecode, read, x, spans, true, true);
      EXPECT_EQ(a.q, b.q);
      const Floats kv = joined(a.kv);
      EXPECT_TRUE(same_bits(kv.data(), joined(b.kv).data(), kv.size()));
    }
  }
}

// More than a launch on a GPU has, and more rows.
TEST_P(KvOps, QkvOfManySequencesHasTheBitsOfEachAlone) {
  constexpr int kSequences = 70;
  const QkvCase& c = kQkvCases[0];
  QkvSetup setup(*backend_, c);
  std::vector<Span> spans;
  int rows = 0;
  for (int i = 0; i < kSequences; ++i) {
    spans.push_back({1 + i % 3, 11 * i});
    rows += spans.back().rows;
  }
  const Floats x = normal_floats(std::size_t(rows) * c.hidden, 8);
  for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
    const QkvResult all = setup.run(Phase::kDecode, read, x, spans);
    const QkvResult of_rounds = setup.run(Phase::kDecode, read, x, spans, true, true);
    const Floats kv = joined(all.kv);
    EXPECT_EQ(all.q, of_rounds.q);
    EXPECT_TRUE(same_bits(kv.data(), joined(of_rounds.kv).data(), kv.size()));
    std::size_t q_at = 0, kv_at = 0;
    std::ptrdiff_t x_at = 0;
    for (const Span& span : spans) {
      const std::ptrdiff_t count = std::ptrdiff_t{span.rows} * c.hidden;
      const Floats own(x.begin() + x_at, x.begin() + x_at + count);
      const QkvResult one = setup.run(Phase::kDecode, read, own, {span});
      const Floats one_kv = joined(one.kv);
      EXPECT_TRUE(same_bits(one.q.data(), &all.q[q_at], one.q.size())) << span.first_position;
      EXPECT_TRUE(same_bits(one_kv.data(), &kv[kv_at], one_kv.size())) << span.first_position;
      x_at += count;
      q_at += one.q.size();
      kv_at += one_kv.size();
    }
  }
  const QkvResult prefill = setup.run(Phase::kPrefill, WeightRead::kTarget, x, spans);
  const QkvResult expected =
      QkvSetup(*reference_, c).run(Phase::kPrefill, WeightRead::kTarget, x, spans);
  EXPECT_TRUE(qkv_near(prefill, expected, c, Phase::kPrefill, WeightRead::kTarget));
}

// --- full-precision K and V ----------------------------------------------------------------------

const KvShape kShapes[] = {
    {2, 2, 64, 32}, {1, 3, 80, 64}, {3, 1, 96, 32}, {2, 2, 128, 128}, {1, 2, 256, 64},
};

// Keys and values of positions, the same for a seed.
Floats key_of(const KvShape& shape, int position, int kv_head) {
  return half_floats(shape.head_dim, 1000 * position + 2 * kv_head);
}
Floats value_of(const KvShape& shape, int position, int kv_head) {
  return half_floats(shape.head_dim, 1000 * position + 2 * kv_head + 1, 0.3f);
}
void fill(TestFullKv& kv, const KvShape& shape, int first, int count) {
  for (int p = first; p < first + count; ++p) {
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      kv.write(h, p, key_of(shape, p, h).data(), value_of(shape, p, h).data());
    }
  }
}
bool holds(const TestFullKv& kv, const KvShape& shape, int position) {
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    if (kv.read(h, position) != joined({key_of(shape, position, h), value_of(shape, position, h)}))
      return false;
  }
  return true;
}
bool is_untouched(const TestFullKv& kv, const KvShape& shape, int position) {
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    for (const float x : kv.read(h, position)) {
      if (!std::isnan(x)) return false;
    }
  }
  return true;
}

TEST_P(KvOps, FullKvIsReadAsItWasWritten) {
  for (const KvShape& shape : kShapes) {
    const int ring = 2 * shape.page_size;
    TestFullKv kv(*backend_, shape, ring);
    fill(kv, shape, ring - 5, 11);
    for (int p = ring - 5; p < ring + 6; ++p) EXPECT_TRUE(holds(kv, shape, p));
    for (int p = 6; p < ring - 5; ++p) EXPECT_TRUE(is_untouched(kv, shape, p));
    EXPECT_TRUE(kv.intact());
  }
}

// A range of positions, over the end of the ring and within it, is its positions one by one.
TEST_P(KvOps, FullKvIsReadAndWrittenInRanges) {
  for (const KvShape& shape : kShapes) {
    const int ring = 2 * shape.page_size, dim = shape.head_dim;
    TestFullKv source(*backend_, shape, ring), target(*backend_, shape, ring);
    for (const auto& [first, count] : {std::pair{ring - 5, 11}, {ring + 6, ring}, {3, 1}, {3, 0}}) {
      fill(source, shape, first, count);
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        Floats keys(count * dim), values(keys.size()), keys_alone(keys.size());
        backend_->read_full_kv(shape, source.get(), h, first, count, keys.data(), values.data());
        backend_->read_full_kv(shape, source.get(), h, first, count, keys_alone.data(), nullptr);
        EXPECT_EQ(keys, keys_alone);
        for (int i = 0; i < count; ++i) {
          const Floats key(&keys[i * dim], &keys[i * dim] + dim);
          const Floats value(&values[i * dim], &values[i * dim] + dim);
          EXPECT_EQ(joined({key, value}), source.read(h, first + i)) << first << " " << i;
        }
        backend_->write_full_kv(shape, target.get(), h, first, count, keys.data(), values.data());
      }
      for (int p = first; p < first + count; ++p) EXPECT_TRUE(holds(target, shape, p)) << p;
    }
    EXPECT_TRUE(source.intact() && target.intact());
  }
}

TEST_P(KvOps, FullKvTakesTheSpaceOfItsElements) {
  for (const KvShape& shape : kShapes) {
    const std::size_t elements = std::size_t{2} * shape.num_kv_heads * shape.head_dim * 64;
    const std::size_t bytes = backend_->full_kv_bytes(shape, 64);
    EXPECT_EQ(bytes, elements * (GetParam() == "reference" ? 4 : 2));
  }
}

TEST_P(KvOps, FullKvHasHeadsSideBySideInStrips) {
  for (const KvShape& shape : kShapes) {
    const KvShape one{shape.num_layers, 1, shape.head_dim, shape.page_size};
    const auto bytes_of = [&](const KvShape& of, FullKv kv) {
      std::vector<std::byte> bytes(backend_->full_kv_bytes(of, 48));
      backend_->download(bytes.data(), kv.data, bytes.size());
      return bytes;
    };
    TestFullKv whole(*backend_, shape, 48), own(*backend_, one, 48);
    fill(whole, shape, 0, 48);
    const auto all = bytes_of(shape, whole.get());
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int p = 0; p < 48; ++p) {
        own.write(0, p, key_of(shape, p, h).data(), value_of(shape, p, h).data());
      }
      const auto part = bytes_of(one, own.get());
      const std::size_t size = part.size() / backend_->full_kv_strips();
      for (std::size_t at = 0; at < part.size(); at += size)
        EXPECT_EQ(std::memcmp(&part[at], &all[at * shape.num_kv_heads + h * size], size), 0) << h;
    }
  }
}

TEST_P(KvOps, CopyMovesPositionsAndNoOthers) {
  for (const KvShape& shape : kShapes) {
    const int ring = 2 * shape.page_size, scratch = 5 * shape.page_size;
    TestFullKv source(*backend_, shape, scratch), target(*backend_, shape, ring);
    fill(source, shape, 0, scratch);
    const int first = 3 * shape.page_size + 3, count = shape.page_size + 7;
    backend_->copy_full_kv(shape, source.get(), target.get(), first, count);
    for (int p = first; p < first + ring; ++p) {
      EXPECT_TRUE(p < first + count ? holds(target, shape, p) : is_untouched(target, shape, p));
    }
    backend_->copy_full_kv(shape, source.get(), target.get(), first, 0);
    EXPECT_TRUE(source.intact() && target.intact());
  }
}

// Every kv head its own positions, from a source that has gone around; into the middle of a target.
TEST_P(KvOps, GatherMovesEachHeadsPositionsAndNoOthers) {
  for (const KvShape& shape : kShapes) {
    const int capacity = 4 * shape.page_size, first = 3 * shape.page_size;
    TestFullKv source(*backend_, shape, capacity);
    fill(source, shape, first, capacity);
    for (const int count : {0, 1, 15, 16, 17, 40}) {
      for (const int first_slot : {0, 5}) {
        TestFullKv target(*backend_, shape, 48);
        std::vector<int> positions;
        for (int i = 0; i < shape.num_kv_heads * count; ++i) {
          positions.push_back(first + 37 * (i + 1) % capacity);  // in no order
        }
        backend_->gather_full_kv(shape, source.get(), target.get(), positions, first_slot);
        EXPECT_TRUE(source.intact() && target.intact());
        for (int slot = 0; slot < 48; ++slot) {
          const int i = slot - first_slot;
          if (i < 0 || i >= count) {
            EXPECT_TRUE(is_untouched(target, shape, slot)) << slot;
            continue;
          }
          for (int h = 0; h < shape.num_kv_heads; ++h) {
            const int position = positions[h * count + i];
            EXPECT_EQ(target.read(h, slot),
                      joined({key_of(shape, position, h), value_of(shape, position, h)}))
                << "head_dim " << shape.head_dim << ", slot " << slot << ", kv head " << h;
          }
        }
      }
    }
  }
}

// --- pages ---------------------------------------------------------------------------------------

CanonicalUnit exported(const Backend& backend, const KvShape& shape, int layer, int kv_head,
                       PagePlanes page) {
  CanonicalUnit unit(shape);
  backend.export_unit(shape, layer, kv_head, page, unit.upper.data(), unit.lower.data());
  return unit;
}

// What the codec makes of positions [first, first + page_size) of one kv head, as stored in `kv`.
CanonicalUnit expected_unit(const TestFullKv& kv, const KvShape& shape, int kv_head, int first) {
  Floats keys, values;
  for (int p = first; p < first + shape.page_size; ++p) {
    const Floats both = kv.read(kv_head, p);
    keys.insert(keys.end(), both.begin(), both.begin() + shape.head_dim);
    values.insert(values.end(), both.begin() + shape.head_dim, both.end());
  }
  return encoded(shape, keys, values);
}

TEST_P(KvOps, PagesAreByteEqualToTheCodec) {
  for (const KvShape& shape : kShapes) {
    const int layer = shape.num_layers - 1;
    TestFullKv source(*backend_, shape, 4 * shape.page_size);
    // Three pages that go around the end of the source.
    const int first = 6 * shape.page_size;
    fill(source, shape, first, 3 * shape.page_size);
    TestPages pages(*backend_, shape, 3);
    quantize_layer(shape, layer, source.get(), first, pages.get());
    EXPECT_TRUE(pages.intact() && source.intact());
    for (int page = 0; page < 3; ++page) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        EXPECT_EQ(exported(*backend_, shape, layer, h, pages.list()[page]),
                  expected_unit(source, shape, h, first + page * shape.page_size))
            << "head_dim " << shape.head_dim << ", page " << page << ", kv head " << h;
      }
    }
  }
}

TEST_P(KvOps, PagesOfOneLayerLeaveTheOthers) {
  const KvShape shape{3, 2, 64, 32};
  TestFullKv source(*backend_, shape, 64);
  fill(source, shape, 0, 32);
  TestPages pages(*backend_, shape, 1);
  const auto export_layers = [&] {
    std::vector<CanonicalUnit> units;
    for (const int layer : {0, 2}) {
      for (const int h : {0, 1}) {
        units.push_back(exported(*backend_, shape, layer, h, pages.list()[0]));
      }
    }
    return units;
  };
  const auto before = export_layers();
  quantize_layer(shape, 1, source.get(), 0, pages.get());
  EXPECT_EQ(export_layers(), before);
}

// More layers than a launch of the cuda backend takes, of different capacities.
TEST_P(KvOps, PagesOfManyLayersAreByteEqualToTheCodec) {
  const KvShape shape{67, 2, 32, 32};
  std::vector<TestFullKv> sources;
  std::vector<FullKv> layers;
  for (int layer = 1; layer < shape.num_layers; ++layer) {
    TestFullKv& source = sources.emplace_back(*backend_, shape, 64 + 32 * (layer % 3));
    for (int p = 32; p < 96; ++p) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        source.write(h, p, key_of(shape, p + layer, h).data(), value_of(shape, p, h).data());
      }
    }
    layers.push_back(source.get());
  }
  TestPages pages(*backend_, shape, 2);
  const auto untouched = exported(*backend_, shape, 0, 1, pages.list()[1]);
  backend_->quantize_pages(shape, 1, layers, 32, pages.get());
  EXPECT_TRUE(pages.intact());
  EXPECT_EQ(exported(*backend_, shape, 0, 1, pages.list()[1]), untouched);
  for (int layer = 1; layer < shape.num_layers; ++layer) {
    for (int page = 0; page < 2; ++page) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        EXPECT_EQ(exported(*backend_, shape, layer, h, pages.list()[page]),
                  expected_unit(sources[layer - 1], shape, h, 32 + page * shape.page_size))
            << "layer " << layer << ", page " << page << ", kv head " << h;
      }
    }
  }
}

// Constant, zero, tiny, huge, NaN and infinite channels and tokens.
TEST_P(KvOps, PagesOfAwkwardValuesAreByteEqualToTheCodec) {
  for (const KvShape& shape : kShapes) {
    TestFullKv source(*backend_, shape, 2 * shape.page_size);
    const float special[] = {0.0f,      1.5f,     -0.0f,     6e-8f,         65504.0f,
                             -65504.0f, INFINITY, -INFINITY, std::nanf(""), 1e-3f};
    for (int p = 0; p < shape.page_size; ++p) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        Floats key = key_of(shape, p, h), value = value_of(shape, p, h);
        for (int i = 0; i < 10; ++i) {
          key[i] = special[i];                              // constant channels
          key[10 + i] = p % 16 == i ? special[i] : key[i];  // one odd value among equal ones
          key[20 + i] = key[20 + i] * special[i] * 1e-2f;
          if (p == i) std::fill(value.begin(), value.end(), special[i]);  // constant tokens
          if (p == 10 + i) value[3 * i] = special[i];
        }
        source.write(h, p, key.data(), value.data());
      }
    }
    TestPages pages(*backend_, shape, 1);
    quantize_layer(shape, 0, source.get(), 0, pages.get());
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      EXPECT_EQ(exported(*backend_, shape, 0, h, pages.list()[0]),
                expected_unit(source, shape, h, 0))
          << "head_dim " << shape.head_dim << ", kv head " << h;
    }
  }
}

TEST_P(KvOps, ImportedUnitsAreExportedUnchanged) {
  for (const KvShape& shape : kShapes) {
    TestPages pages(*backend_, shape, 1);
    std::vector<CanonicalUnit> units;
    for (int i = 0; i < static_cast<int>(shape.units()); ++i) {
      CanonicalUnit unit(shape);
      const CounterRng rng(i);
      for (std::size_t b = 0; b < unit.upper.size(); ++b) {
        unit.upper[b] = std::byte(rng.bits(b, RandomStream::kSample) & 255);
      }
      for (std::size_t b = 0; b < unit.lower.size(); ++b) {
        unit.lower[b] = std::byte(rng.bits(b, RandomStream::kDraft) & 255);
      }
      backend_->import_unit(shape, i / shape.num_kv_heads, i % shape.num_kv_heads,
                            unit.upper.data(), unit.lower.data(), pages.list()[0]);
      units.push_back(std::move(unit));
    }
    EXPECT_TRUE(pages.intact());
    for (int i = 0; i < static_cast<int>(shape.units()); ++i) {
      EXPECT_EQ(exported(*backend_, shape, i / shape.num_kv_heads, i % shape.num_kv_heads,
                         pages.list()[0]),
                units[i]);
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(KvOps);

}  // namespace
}  // namespace quantspec
