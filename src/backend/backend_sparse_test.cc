// What a sparse draft adds to attention, of every backend, the reference too, against the equations
// in double: page lists, gathered positions, the mass of pages and the bounds of their scores.
#include <optional>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

struct Case {
  KvShape shape;
  int group = 1;
  int rows = 1;
  int pages = 0;
  std::vector<int> lists = {};  // [kv heads, n]
  int gathered = 0;
  int ring = 1;  // positions in the ring, the rows among them
  int gap = 0;   // positions between the pages and the ring that nobody reads

  int num_heads() const { return group * shape.num_kv_heads; }
  int first_full() const { return pages * shape.page_size + gap; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
  std::size_t row_size() const { return std::size_t(num_heads()) * shape.head_dim; }
  std::vector<int> pages_of(int kv_head) const {
    std::vector<int> list;
    const int count = lists.empty() ? pages : static_cast<int>(lists.size()) / shape.num_kv_heads;
    for (int i = 0; i < count; ++i) list.push_back(lists.empty() ? i : lists[kv_head * count + i]);
    return list;
  }
};

std::string text(const Case& c) {
  return fmt::format(
      "{} kv heads, group {}, head_dim {}, page {}, {} pages, {} listed, {} gathered, {} in the "
      "ring, {} rows",
      c.shape.num_kv_heads, c.group, c.shape.head_dim, c.shape.page_size, c.pages, c.lists.size(),
      c.gathered, c.ring, c.rows);
}

// The second of two layers, so that an op that forgets the layer fails.
KvShape shape_of(int kv_heads, int head_dim, int page_size) {
  return {2, kv_heads, head_dim, page_size};
}
constexpr int kLayer = 1;

// Keys then values of some positions of one kv head.
struct Tokens {
  Floats keys, values;
};

struct Data {
  Data(const Case& c, std::uint64_t seed) : c(c) {
    const int dim = c.shape.head_dim;
    for (int i = 0; i < (c.pages + 2) * c.shape.num_kv_heads; ++i) {
      const int part = i / c.shape.num_kv_heads;  // pages, gathered, ring
      const int count = part < c.pages ? c.shape.page_size : part == c.pages ? c.gathered : c.ring;
      parts.push_back({half_floats(std::size_t(count) * dim, seed + 10 * i),
                       half_floats(std::size_t(count) * dim, seed + 10 * i + 1)});
    }
    q = normal_floats(c.rows * c.row_size(), seed + 4, 1.5f);
  }
  Tokens& part(int index, int kv_head) { return parts[index * c.shape.num_kv_heads + kv_head]; }
  const Tokens& part(int index, int kv_head) const {
    return parts[index * c.shape.num_kv_heads + kv_head];
  }
  // What a pass reads of a page.
  Tokens page(int index, int kv_head, KvRead read) const {
    const Tokens& tokens = part(index, kv_head);
    const CanonicalUnit unit = encoded(c.shape, tokens.keys, tokens.values);
    Tokens out{Floats(tokens.keys.size()), Floats(tokens.keys.size())};
    decode_unit(c.shape, unit.upper.data(), unit.lower.data(), read, out.keys.data(),
                out.values.data());
    return out;
  }

  Case c;
  std::vector<Tokens> parts;  // [pages + 2, kv heads]: the last two are gathered and ring
  Floats q;
};

// --- the equations -------------------------------------------------------------------------------

struct Result {
  Floats out;   // [rows, heads * head_dim]
  Floats mass;  // [kv heads, pages]
};

double dot(const float* a, const float* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

void append(Tokens& to, const Tokens& from) {
  to.keys.insert(to.keys.end(), from.keys.begin(), from.keys.end());
  to.values.insert(to.values.end(), from.values.begin(), from.values.end());
}

Result equations(const Data& data, KvRead read) {
  const Case& c = data.c;
  const int dim = c.shape.head_dim;
  Result result{Floats(data.q.size()), Floats(std::size_t(c.shape.num_kv_heads) * c.pages)};
  for (int h = 0; h < c.shape.num_kv_heads; ++h) {
    Tokens seen;
    const std::vector<int> pages = c.pages_of(h);
    for (const int page : pages) append(seen, data.page(page, h, read));
    append(seen, data.part(c.pages, h));
    append(seen, data.part(c.pages + 1, h));
    for (int column = 0; column < c.rows * c.group; ++column) {
      const int row = column / c.group, head = h * c.group + column % c.group;
      const std::size_t at = row * c.row_size() + std::size_t(head) * dim;
      std::vector<double> p(seen.keys.size() / dim - (c.rows - 1 - row));
      double most = -INFINITY, sum = 0;
      for (std::size_t t = 0; t < p.size(); ++t) {
        p[t] = c.scale() * dot(&data.q[at], &seen.keys[t * dim], dim);
        most = std::max(most, p[t]);
      }
      for (double& x : p) sum += x = std::exp(x - most);
      for (int i = 0; i < dim; ++i) {
        double out = 0;
        for (std::size_t t = 0; t < p.size(); ++t) out += p[t] / sum * seen.values[t * dim + i];
        result.out[at + i] = static_cast<float>(out);
      }
      for (std::size_t i = 0; i < pages.size(); ++i) {
        double mass = 0;
        for (int t = 0; t < c.shape.page_size; ++t) mass += p[i * c.shape.page_size + t] / sum;
        result.mass[h * c.pages + pages[i]] += static_cast<float>(mass);
      }
    }
  }
  return result;
}

// --- a backend -----------------------------------------------------------------------------------

class TestCache {
 public:
  TestCache(Backend& backend, const Data& data)
      : c_(data.c),
        pages_(backend, c_.shape, c_.pages),
        lists_(backend, c_.lists),
        ring_(backend, c_.shape, (c_.ring + 31) / 16 * 16) {
    if (c_.gathered > 0) gathered_.emplace(backend, c_.shape, (c_.gathered + 15) / 16 * 16);
    const int dim = c_.shape.head_dim;
    for (int h = 0; h < c_.shape.num_kv_heads; ++h) {
      for (int page = 0; page < c_.pages; ++page) {
        const Tokens& tokens = data.part(page, h);
        const CanonicalUnit unit = encoded(c_.shape, tokens.keys, tokens.values);
        backend.import_unit(c_.shape, kLayer, h, unit.upper.data(), unit.lower.data(),
                            pages_.list()[page]);
      }
      const Tokens &gathered = data.part(c_.pages, h), &ring = data.part(c_.pages + 1, h);
      for (int i = 0; i < c_.gathered; ++i) {
        gathered_->write(h, i, &gathered.keys[i * dim], &gathered.values[i * dim]);
      }
      for (int i = 0; i < c_.ring; ++i) {
        ring_.write(h, c_.first_full() + i, &ring.keys[i * dim], &ring.values[i * dim]);
      }
    }
  }
  KvView view(KvRead read) const {
    KvView view{.pages = pages_.get(),
                .full = ring_.get(),
                .first_full = c_.first_full(),
                .layer = kLayer,
                .read = read};
    view.page_lists = {lists_.data(), lists_.size()};
    if (gathered_) view.gathered = gathered_->get();
    view.num_gathered = c_.gathered;
    return view;
  }
  bool intact() const {
    return pages_.intact() && lists_.intact() && ring_.intact() &&
           (!gathered_ || gathered_->intact());
  }

 private:
  Case c_;
  TestPages pages_;
  mutable Guarded<int> lists_;
  TestFullKv ring_;
  std::optional<TestFullKv> gathered_;
};

// Pages that are yet to come, in rows of PageScores.
constexpr int kRoom = 5;

// [num_kv_heads, pages] of [num_kv_heads, pages + kRoom].
Floats of_pages(const Floats& scores, const Case& c) {
  Floats out;
  for (int h = 0; h < c.shape.num_kv_heads; ++h) {
    const auto row = scores.begin() + std::ptrdiff_t{h} * (c.pages + kRoom);
    out.insert(out.end(), row, row + c.pages);
  }
  return out;
}

// All sequences in one call; mass is wanted of those without lists.
std::vector<Result> attend(Backend& backend, const std::vector<Data>& sequences, KvRead read,
                           bool want_mass = true) {
  std::vector<std::unique_ptr<TestCache>> caches;
  std::vector<std::unique_ptr<Guarded<float>>> masses;
  std::vector<SequenceRows> rows;
  Floats q;
  int first_row = 0;
  for (const Data& data : sequences) {
    const Case& c = data.c;
    caches.push_back(std::make_unique<TestCache>(backend, data));
    masses.push_back(std::make_unique<Guarded<float>>(
        backend, Floats(std::size_t(c.shape.num_kv_heads) * (c.pages + kRoom), -7.0f)));
    rows.push_back(
        {first_row, c.rows, c.first_full() + c.ring - c.rows, caches.back()->view(read)});
    if (want_mass && c.lists.empty()) {
      rows.back().kv.page_mass = {masses.back()->data(), c.pages + kRoom};
    }
    q.insert(q.end(), data.q.begin(), data.q.end());
    first_row += c.rows;
  }
  const Case& c = sequences.front().c;
  const Guarded<float> in(backend, q);
  Guarded<float> out(backend, Floats(q.size(), std::nanf("")));
  backend.attention({in.data(), out.data(), c.num_heads(), c.shape, c.scale(), rows});
  EXPECT_TRUE(out.intact());
  std::vector<Result> results;
  const Floats outs = out.values();
  const float* at = outs.data();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_TRUE(caches[i]->intact() && masses[i]->intact());
    const Floats all = masses[i]->values(), mass = of_pages(all, sequences[i].c);
    results.push_back({Floats(at, at + sequences[i].q.size()), mass});
    if (rows[i].kv.page_mass.data != nullptr) {
      const auto is_nan = [](float x) { return std::isnan(x); };
      EXPECT_EQ(std::ranges::count_if(all, is_nan), kRoom * c.shape.num_kv_heads);
      EXPECT_TRUE(std::ranges::none_of(mass, is_nan));
    }
    at += sequences[i].q.size();
  }
  return results;
}

Result attend(Backend& backend, const Data& data, KvRead read, bool want_mass = true) {
  return attend(backend, std::vector<Data>{data}, read, want_mass).front();
}

bool equal_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

constexpr KvRead kReads[] = {KvRead::kUpper, KvRead::kBoth};

class SparseAttention : public OpTest {
 protected:
  void expect_equations(const Case& c, std::uint64_t seed) {
    const Data data(c, seed);
    for (const KvRead read : kReads) {
      const Floats out = attend(*backend_, data, read).out, wanted = equations(data, read).out;
      EXPECT_TRUE(attention_near(out, wanted, read, tolerances_))
          << text(c) << ", read " << int(read);
    }
  }
};

// --- lists and gathered positions ----------------------------------------------------------------

TEST_P(SparseAttention, EveryHeadShapeFollowsTheEquations) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int group : {1, 3}) {
      const KvShape shape = shape_of(2, head_dim, 32);
      const std::vector<int> lists = {0, 3, 6, 1, 2, 5};
      expect_equations({shape, group, 3, 7, lists, 0, 20}, 1);
      expect_equations({shape, group, 3, 7, lists, 21, 20, 48}, 2);
      expect_equations({shape, group, 3, 3, {}, 21, 20}, 3);
      expect_equations({shape, group, 3, 0, {}, 21, 20, 160}, 4);
      expect_equations({shape, group, 3, 0, {}, 0, 20, 160}, 5);  // the ring alone
    }
  }
}

TEST_P(SparseAttention, EveryLengthOfListFollowsTheEquations) {
  constexpr int kPages = 19;
  for (int count = 1; count <= kPages; count += count < 7 || count > 9 ? 3 : 1) {
    std::vector<int> lists;
    for (int i = 0; i < count; ++i) lists.push_back(i);                   // the first
    for (int i = 0; i < count; ++i) lists.push_back(kPages - count + i);  // and the last ones
    expect_equations({shape_of(2, 64, 32), 2, 2, kPages, lists, 3, 9}, 6);
  }
}

TEST_P(SparseAttention, EveryNumberOfGatheredPositionsFollowsTheEquations) {
  for (int gathered = 1; gathered <= 40; ++gathered) {
    expect_equations({shape_of(2, 64, 32), 3, 2, 1, {}, gathered, 7}, 7);
  }
  for (const int gathered : {255, 256, 257, 1023, 1030, 2049}) {  // bands and splits
    expect_equations({shape_of(1, 64, 32), 1, 2, 1, {}, gathered, 7, 0}, 8);
  }
}

TEST_P(SparseAttention, AListOfAllPagesHasTheBitsOfNone) {
  Data data({shape_of(2, 128, 32), 3, 4, 10, {}, 0, 20}, 9);
  for (const KvRead read : kReads) {
    const Floats none = attend(*backend_, data, read).out;
    Data listed = data;
    for (int i = 0; i < 2 * 10; ++i) listed.c.lists.push_back(i % 10);
    EXPECT_TRUE(equal_bits(attend(*backend_, listed, read).out, none));
  }
}

std::vector<Data> unequal_sequences(int page_size = 32, int most_rows = 5) {
  const KvShape shape = shape_of(2, 80, page_size);
  return {
      Data({shape, 3, 1, 12, {0, 2, 3, 4, 5, 7, 8, 9, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8}, 19, 30}, 20),
      Data({shape, 3, most_rows - 1, 9, {}, 0, 33}, 21), Data({shape, 3, 2, 0, {}, 35, 5, 96}, 22),
      Data({shape, 3, most_rows, 17, {}, 7, 64}, 23)};
}

TEST_P(SparseAttention, NeitherThreadsNorOtherSequencesChangeBits) {
  std::vector<Data> sequences = unequal_sequences();
  for (int i = 0; i < 32; ++i) sequences.push_back(sequences[i]);  // of two launches on a GPU
  for (const KvRead read : kReads) {
    const std::vector<Result> together = attend(*backend_, sequences, read);
    for (const int threads : {1, 2}) {
      const auto other = make_test_backend(GetParam(), threads);
      const std::vector<Result> results = attend(*other, sequences, read);
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        EXPECT_TRUE(equal_bits(results[i].out, together[i].out)) << i;
        EXPECT_TRUE(equal_bits(results[i].mass, together[i].mass)) << i;
      }
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Result alone = attend(*backend_, sequences[i], read);
      if (read == KvRead::kUpper && GetParam() == "cuda") {  // a draft beside many has other splits
        EXPECT_TRUE(attention_near(together[i].out, alone.out, read, tolerances_)) << i;
        EXPECT_TRUE(near_nmse(together[i].mass, alone.mass, tolerances_.draft_nmse)) << i;
        continue;
      }
      EXPECT_TRUE(equal_bits(alone.out, together[i].out)) << i;
      EXPECT_TRUE(equal_bits(alone.mass, together[i].mass)) << i;
    }
  }
}

// On a GPU of blocks that stay, of one column tile and of several.
TEST_P(SparseAttention, MassesBesideOtherSequencesHaveTheirBits) {
  for (const int most_rows : {2, 5}) {
    std::vector<Data> sequences = unequal_sequences(64, most_rows);
    for (int i = 0; i < 8; ++i) sequences.push_back(sequences[i]);
    const std::vector<Result> together = attend(*backend_, sequences, KvRead::kBoth);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Result alone = attend(*backend_, sequences[i], KvRead::kBoth);
      EXPECT_TRUE(equal_bits(alone.out, together[i].out)) << i;
      EXPECT_TRUE(equal_bits(alone.mass, together[i].mass)) << i;
    }
  }
}

// Few beside each other leave a draft its splits.
TEST_P(SparseAttention, AFewSequencesChangeNoBitsOfDrafts) {
  const std::vector<Data> sequences = unequal_sequences();
  const std::vector<Result> together = attend(*backend_, sequences, KvRead::kUpper);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Result alone = attend(*backend_, sequences[i], KvRead::kUpper);
    EXPECT_TRUE(equal_bits(alone.out, together[i].out)) << i;
    EXPECT_TRUE(equal_bits(alone.mass, together[i].mass)) << i;
  }
}

TEST_P(SparseAttention, ARowAloneHasTheSameBits) {
  for (const Data& all : unequal_sequences()) {
    for (const KvRead read : kReads) {
      const Floats together = attend(*backend_, all, read).out;
      const std::size_t size = all.c.row_size();
      for (int row = 0; row < all.c.rows; ++row) {
        Data one = all;
        one.c.rows = 1;
        one.c.ring -= all.c.rows - 1 - row;
        one.q.assign(all.q.begin() + row * size, all.q.begin() + (row + 1) * size);
        const Floats alone = attend(*backend_, one, read).out;
        EXPECT_TRUE(same_bits(alone.data(), &together[row * size], size)) << text(all.c) << row;
      }
    }
  }
}

// --- the mass of pages ---------------------------------------------------------------------------

const Case kMassCases[] = {
    {shape_of(2, 64, 32), 1, 1, 1, {}, 0, 20},    {shape_of(2, 80, 32), 3, 5, 16, {}, 0, 33},
    {shape_of(1, 128, 128), 1, 5, 9, {}, 0, 150}, {shape_of(2, 256, 64), 3, 2, 17, {}, 21, 70},
    {shape_of(3, 64, 32), 1, 9, 33, {}, 0, 9},    {shape_of(1, 128, 64), 4, 8, 9, {}, 0, 70},
};

double worst_relative(const Floats& actual, const Floats& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(double{actual[i]} - expected[i]) / expected[i]);
  }
  return worst;
}

// All channels of a page have the same scale and a query has one magnitude, so that rounding them
// to integers (attention-inl.h) changes nothing. What is left is fp32; measured: 3e-7.
Data unrounded(const Case& c, std::uint64_t seed) {
  Data data(c, seed);
  const int dim = c.shape.head_dim;
  for (Tokens& tokens : data.parts) {
    for (std::size_t i = 0; i < tokens.keys.size(); ++i) {
      const std::size_t t = i / dim;
      tokens.keys[i] = t < 2 ? (t == i % 2 ? 2.0f : -2.0f) : std::clamp(tokens.keys[i], -2.f, 2.f);
    }
  }
  for (float& x : data.q) x = std::copysign(0.5f, x);
  return data;
}

TEST_P(SparseAttention, MassIsTheProbabilityOfEachPage) {
  for (const Case& c : kMassCases) {
    for (const KvRead read : kReads) {
      const Data exact = unrounded(c, 40);
      EXPECT_LT(worst_relative(attend(*backend_, exact, read).mass, equations(exact, read).mass),
                tolerances_.exact_mass)
          << text(c) << ", read " << int(read);
      const Data any(c, 41);
      EXPECT_LT(worst_relative(attend(*backend_, any, read).mass, equations(any, read).mass),
                read == KvRead::kBoth ? tolerances_.target_mass : tolerances_.draft_mass)
          << text(c) << ", read " << int(read);
    }
  }
}

// With values 0 in pages and 1 elsewhere, the output is what pages did not get.
TEST_P(SparseAttention, MassAndTheRestAreOne) {
  for (const Case& c : kMassCases) {
    Data data(c, 42);
    for (std::size_t i = 0; i < data.parts.size(); ++i) {
      const bool paged = i < std::size_t(c.pages) * c.shape.num_kv_heads;
      std::fill(data.parts[i].values.begin(), data.parts[i].values.end(), paged ? 0.0f : 1.0f);
    }
    for (const KvRead read : kReads) {
      const Result result = attend(*backend_, data, read);
      for (int h = 0; h < c.shape.num_kv_heads; ++h) {
        double sum = 0;
        for (int page = 0; page < c.pages; ++page) sum += result.mass[h * c.pages + page];
        for (int column = 0; column < c.rows * c.group; ++column) {
          sum += result.out[column / c.group * c.row_size() +
                            std::size_t(h * c.group + column % c.group) * c.shape.head_dim];
        }
        EXPECT_NEAR(sum, c.rows * c.group, tolerances_.whole * c.rows * c.group) << text(c);
      }
    }
  }
}

TEST_P(SparseAttention, MassDoesNotChangeTheOutput) {
  for (const Case& c : kMassCases) {
    const Data data(c, 43);
    for (const KvRead read : kReads) {
      const Result with = attend(*backend_, data, read);
      EXPECT_TRUE(equal_bits(attend(*backend_, data, read, false).out, with.out)) << text(c);
    }
  }
}

// --- bounds --------------------------------------------------------------------------------------

Floats bounds_of(Backend& backend, const Data& data) {
  const Case& c = data.c;
  const TestCache cache(backend, data);
  const Guarded<float> q(backend, data.q);
  Guarded<int> list(backend, c.shape.num_kv_heads);
  Guarded<float> out(backend, Floats(c.shape.num_kv_heads * (c.pages + kRoom), std::nanf("")));
  SequenceRows row{0, 1, c.first_full() + 1, cache.view(KvRead::kBoth)};
  row.kv.page_lists = {list.data(), list.size()};
  row.kv.page_scores = {out.data(), c.pages + kRoom};
  backend.page_bounds({q.data(), c.num_heads(), c.shape, {&row, 1}});
  EXPECT_TRUE(q.intact() && out.intact() && cache.intact());
  return of_pages(out.values(), c);
}

TEST_P(SparseAttention, BoundsAreTheFormulaAndHold) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int group : {1, 3}) {
      for (const int pages : {0, 1, 7, 40}) {
        const Case c{shape_of(2, head_dim, 32), group, 1, pages, {}, 0, 20};
        const Data data(c, 50);
        const Floats bounds = bounds_of(*backend_, data);
        for (int i = 0; i < 2 * pages; ++i) {
          const int h = i / pages, page = i % pages;
          const Tokens& tokens = data.part(page, h);
          CanonicalUnit unit = encoded(c.shape, tokens.keys, tokens.values);
          const UnitScales scales = unit_scales(c.shape, unit.upper.data());
          const Tokens read = data.page(page, h, KvRead::kBoth);
          double formula = -INFINITY, greatest = -INFINITY, level = 0;
          for (int head = h * group; head < (h + 1) * group; ++head) {
            const float* q = &data.q[std::size_t(head) * head_dim];
            double sum = 0, levels = 0;
            for (int ch = 0; ch < head_dim; ++ch) {
              const double scale = f16_to_f32(scales.key_scale[ch]);
              const double offset = f16_to_f32(scales.key_offset[ch]);
              sum += std::max(q[ch] * (offset + scale * kCodeMargin),
                              q[ch] * (offset + scale * (255 - kCodeMargin)));
              levels += std::abs(q[ch]) * scale;
            }
            formula = std::max(formula, sum);
            level = std::max(level, levels);
            for (int t = 0; t < c.shape.page_size; ++t) {
              greatest =
                  std::max(greatest, dot(q, &read.keys[std::size_t(t) * head_dim], head_dim));
            }
          }
          ASSERT_NEAR(bounds[h * pages + page], formula, 1e-5 * std::abs(formula)) << text(c);
          // Codes lie within the margins but for the rounding of scale and offset: one level.
          ASSERT_GE(bounds[h * pages + page] + level, greatest) << text(c);
        }
      }
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(SparseAttention);

}  // namespace
}  // namespace quantspec
