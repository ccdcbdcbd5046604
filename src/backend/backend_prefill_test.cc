// The ops of Phase::kPrefill, and prefill_attention, of every backend against the reference, and
// against themselves: a row has its bits by what is in it, whatever rows are before and after it.
#include <numeric>
#include <random>
#include <tuple>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

class PrefillOps : public OpTest {};

// --- products ------------------------------------------------------------------------------------

constexpr int kAllRows = 1100;

struct Rows {
  int first, count;
};

// Parts of kAllRows. From the first row every number up to 200, and some around those that tiles
// may be of; from other rows slices as the loop reads them, and odd ones. Fewer where plain loops
// or an emulator compute them.
std::vector<Rows> parts(const std::string& backend) {
  std::vector<Rows> parts;
  if (backend == "reference" || backend.starts_with("neon")) {
    for (const int count : {1, 2, 3, 7, 15, 16, 17, 47, 49, 97, 127, 128, 129, 131, 200, 257}) {
      parts.push_back({0, count});
    }
    parts.insert(parts.end(), {{96, 64}, {120, 32}, {251, 13}});
    return parts;
  }
  for (int count = 1; count <= 200; ++count) parts.push_back({0, count});
  for (const int count : {255, 256, 257, 383, 511, 512, 513, 1000, 1023, 1024, 1025}) {
    parts.push_back({0, count});
  }
  for (const int count : {32, 64, 128, 256, 512}) {
    for (int first = count; first + count <= kAllRows; first += count) {
      parts.push_back({first, count});
    }
  }
  for (int first = 1; first < kAllRows; first += 1 + first % 89) {
    parts.push_back({first, std::min(1 + first * 37 % 300, kAllRows - first)});
  }
  return parts;
}

// run(rows): those rows of an op's results, of each as many floats.
template <typename Run>
void expect_equal_rows(const std::string& backend, const std::string& what, const Run& run) {
  const Floats all = run({0, kAllRows});
  const std::size_t row_floats = all.size() / kAllRows;
  for (const auto& [first, count] : parts(backend)) {
    const Floats some = run({first, count});
    ASSERT_EQ(some.size(), count * row_floats);
    ASSERT_TRUE(same_bits(some.data(), &all[first * row_floats], some.size()))
        << what << ", " << count << " rows from " << first;
  }
}

Floats rows_of(const Floats& x, const Rows& rows) {
  const auto row_floats = std::ssize(x) / kAllRows, first = rows.first * row_floats;
  return {x.begin() + first, x.begin() + first + rows.count * row_floats};
}

struct Size {
  int inputs, outputs;
};
// Elements, and planes: as elements they are all alike.
constexpr WeightFormat kFormats[] = {dense_format(DType::kF32),
                                     dense_format(DType::kF16),
                                     dense_format(DType::kBF16),
                                     sliced_format(),
                                     {.bits = 5, .group = 32, .block = 32, .has_offset = true}};

TEST_P(PrefillOps, AddedRowsDoNotDependOnOthers) {
  for (const Size size : {Size{48, 80}, Size{384, 260}, Size{1408, 17}, Size{200, 1}}) {
    for (const WeightFormat& format : kFormats) {
      const TestLinear made = TestLinear::random(*backend_, format, size.outputs, size.inputs, 2,
                                                 normal_floats(size.outputs, 3));
      Linear linear = *made.get();
      const Floats in = normal_floats(std::size_t{kAllRows} * size.inputs, 4);
      const Floats before = normal_floats(std::size_t{kAllRows} * size.outputs, 5);
      const auto run = [&](const Rows& rows) {
        const Guarded<float> x_in(*backend_, rows_of(in, rows));
        Guarded<float> x(*backend_, rows_of(before, rows));
        backend_->add_linear(
            {Phase::kPrefill, WeightRead::kTarget, x_in.data(), rows.count, &linear, x.data()});
        EXPECT_TRUE(x.intact() && x_in.intact());
        return x.values();
      };
      for (const int segments : {1, 4}) {
        if (segments > 1 && size.inputs < 1024) continue;  // shorter sums have one
        linear.segments = segments;
        expect_equal_rows(GetParam(),
                          fmt::format("{} to {}, {} bits of {}, {} segments", size.inputs,
                                      size.outputs, format.bits, name_of(format.dtype), segments),
                          run);
      }
    }
  }
}

TEST_P(PrefillOps, GatedRowsDoNotDependOnOthers) {
  constexpr Size kSize{256, 301};
  const TestLinear gate(*backend_, HostMatrix(kSize.outputs, kSize.inputs, DType::kBF16, 2));
  const TestLinear up(*backend_, HostMatrix(kSize.outputs, kSize.inputs, DType::kBF16, 3));
  const Guarded<float> norm(*backend_, normal_floats(kSize.inputs, 4));
  const Floats in = normal_floats(std::size_t{kAllRows} * kSize.inputs, 5);
  const auto run = [&](const Rows& rows) {
    const Guarded<float> x(*backend_, rows_of(in, rows));
    Guarded<float> out(*backend_, std::size_t(rows.count) * kSize.outputs);
    backend_->gate_up({Phase::kPrefill, WeightRead::kTarget, x.data(), rows.count,
                       Norm{norm.data(), 1e-5f}, gate.get(), up.get(), out.data()});
    EXPECT_TRUE(out.intact());
    return out.values();
  };
  expect_equal_rows(GetParam(), "gate_up", run);
}

// Of each row its query, key and value.
TEST_P(PrefillOps, ProjectedRowsDoNotDependOnOthers) {
  constexpr int kHeads = 6, kInputs = 192;
  const KvShape shape{1, 2, 80, 64};
  const int q_width = kHeads * shape.head_dim, kv_width = shape.num_kv_heads * shape.head_dim;
  const auto linear = [&](int outputs, int seed) {
    return TestLinear(*backend_, HostMatrix(outputs, kInputs, DType::kF16, seed),
                      normal_floats(outputs, seed + 1));
  };
  const TestLinear q = linear(q_width, 2), k = linear(kv_width, 4), v = linear(kv_width, 6);
  const Guarded<float> norm(*backend_, normal_floats(kInputs, 8));
  const Guarded<float> q_norm(*backend_, normal_floats(shape.head_dim, 9));
  const Guarded<float> k_norm(*backend_, normal_floats(shape.head_dim, 10));
  const Floats in = normal_floats(std::size_t{kAllRows} * kInputs, 11);
  const std::ptrdiff_t half = shape.head_dim / 2;
  const Guarded<float> cos(*backend_, normal_floats(kAllRows * half, 12));
  const Guarded<float> sin(*backend_, normal_floats(kAllRows * half, 13));
  const auto run = [&](const Rows& rows) {
    const Guarded<float> x(*backend_, rows_of(in, rows));
    Guarded<float> q_out(*backend_, std::size_t(rows.count) * q_width);
    TestFullKv kv(*backend_, shape, 1104);
    const SequenceRows sequence{0, rows.count, rows.first, {{}, kv.get(), 0}};
    backend_->qkv({Phase::kPrefill,
                   WeightRead::kTarget,
                   kHeads,
                   shape,
                   x.data(),
                   rows.count,
                   Norm{norm.data(), 1e-5f},
                   q.get(),
                   k.get(),
                   v.get(),
                   Norm{q_norm.data(), 1e-5f},
                   Norm{k_norm.data(), 1e-5f},
                   cos.data() + rows.first * half,
                   sin.data() + rows.first * half,
                   q_out.data(),
                   {&sequence, 1}});
    EXPECT_TRUE(q_out.intact() && kv.intact());
    const Floats queries = q_out.values();
    const std::ptrdiff_t dim = shape.head_dim, width = q_width + 2 * kv_width;
    Floats all(rows.count * width), keys(rows.count * dim), values(rows.count * dim);
    const auto place = [&](const Floats& from, std::ptrdiff_t size, std::ptrdiff_t column) {
      for (int i = 0; i < rows.count; ++i) {
        std::copy_n(from.begin() + i * size, size, all.begin() + i * width + column);
      }
    };
    place(queries, q_width, 0);
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      backend_->read_full_kv(shape, kv.get(), head, rows.first, rows.count, keys.data(),
                             values.data());
      place(keys, dim, q_width + 2 * head * dim);
      place(values, dim, q_width + (2 * head + 1) * dim);
    }
    return all;
  };
  expect_equal_rows(GetParam(), "qkv", run);
}

// --- attention -----------------------------------------------------------------------------------

struct AttentionCase {
  int num_heads;
  KvShape shape;
  int first_position;
  int rows;
  int pages = 0;
  float growth = 0;  // of keys, from a position to the next: later ones have greater scores

  int first_full() const { return pages * shape.page_size; }
  int end() const { return first_position + rows; }
};

std::string text(const AttentionCase& c) {
  return fmt::format("{} heads, {} kv heads, head_dim {}, {} pages of {}, {} rows at {}",
                     c.num_heads, c.shape.num_kv_heads, c.shape.head_dim, c.pages,
                     c.shape.page_size, c.rows, c.first_position);
}

// A prompt in a backend's memory: pages, of which each backend has the same codes, full precision
// from there on, and queries of all rows.
class Prompt {
 public:
  Prompt(Backend& backend, const AttentionCase& c)
      : backend_(backend),
        c_(c),
        pages_(backend, c.shape, c.pages),
        kv_(backend, c.shape, (c.end() - c.first_full() + 15) / 16 * 16),
        q_(normal_floats(std::size_t(c.rows) * row_floats(), 40)) {
    const int size = c.shape.page_size, layer = c.shape.num_layers - 1;
    for (int i = 0; i < c.pages * c.shape.num_kv_heads; ++i) {
      const int page = i / c.shape.num_kv_heads, head = i % c.shape.num_kv_heads;
      Floats keys, values;
      for (int p = page * size; p < (page + 1) * size; ++p) {
        keys = joined(keys, key(p, head));
        values = joined(values, value(p, head));
      }
      const CanonicalUnit unit = encoded(c.shape, keys, values);
      backend.import_unit(c.shape, layer, head, unit.upper.data(), unit.lower.data(),
                          pages_.list()[page]);
    }
    for (int p = c.first_full(); p < c.end(); ++p) {
      for (int head = 0; head < c.shape.num_kv_heads; ++head) {
        kv_.write(head, p, key(p, head).data(), value(p, head).data());
      }
    }
  }

  // Of rows [first, first + count), counted from the first.
  Floats attend(int first, int count, bool in_place) {
    const auto from = q_.begin() + first * row_floats();
    Guarded<float> q(backend_, Floats(from, from + count * row_floats()));
    Guarded<float> out(backend_, q.size());
    const int end = c_.first_position + first + count;
    Guarded<std::byte> unpacked(backend_, backend_.unpacked_bytes(c_.shape, end));
    backend_.prefill_attention({.q = q.data(),
                                .out = in_place ? q.data() : out.data(),
                                .num_heads = c_.num_heads,
                                .shape = c_.shape,
                                .scale = 1.0f / std::sqrt(static_cast<float>(c_.shape.head_dim)),
                                .first_position = c_.first_position + first,
                                .num_rows = count,
                                .kv = {.pages = pages_.get(),
                                       .full = kv_.get(),
                                       .first_full = c_.first_full(),
                                       .layer = c_.shape.num_layers - 1},
                                .unpacked = unpacked.data()});
    EXPECT_TRUE(q.intact() && out.intact() && unpacked.intact());
    EXPECT_TRUE(kv_.intact() && pages_.intact());
    return in_place ? q.values() : out.values();
  }
  Floats attend(bool in_place = false) { return attend(0, c_.rows, in_place); }

  std::ptrdiff_t row_floats() const { return std::ptrdiff_t{c_.num_heads} * c_.shape.head_dim; }

 private:
  static Floats joined(Floats a, const Floats& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  Floats key(int position, int head) const {
    return half_floats(c_.shape.head_dim, 100 * position + 2 * head, 1 + c_.growth * position);
  }
  Floats value(int position, int head) const {
    return half_floats(c_.shape.head_dim, 100 * position + 2 * head + 1);
  }

  Backend& backend_;
  AttentionCase c_;
  TestPages pages_;
  TestFullKv kv_;
  Floats q_;
};

TEST_P(PrefillOps, AttentionIsNearTheReference) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const int group : {1, 3, 7}) {
      for (const auto& [first, rows] : {std::pair{0, 1}, {0, 37}, {0, 150}, {50, 33}, {133, 70}}) {
        if (group == 7 && rows != 70) continue;
        const AttentionCase c{2 * group, {1, 2, head_dim, 64}, first, rows};
        const Floats expected = Prompt(*reference_, c).attend();
        Prompt prompt(*backend_, c);
        EXPECT_TRUE(near(prompt.attend(), expected, tolerances_.prefill_attention)) << text(c);
        EXPECT_TRUE(near(prompt.attend(true), expected, tolerances_.prefill_attention))
            << "in place";
      }
    }
  }
}

// Pages end within a tile of keys and at its end; rows begin at their end and later, and slots of
// full precision go around.
TEST_P(PrefillOps, AttentionToPagesIsNearTheReference) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const int group : {1, 3, 7}) {
      for (const auto& [size, pages] : {std::pair{32, 9}, {64, 5}, {128, 2}, {256, 2}, {48, 3}}) {
        if (group == 7 && size != 64) continue;
        const int first = size * pages + (group == 3 ? 21 : 0);
        const AttentionCase c{2 * group, {2, 2, head_dim, size}, first, 39, pages};
        const Floats expected = Prompt(*reference_, c).attend();
        Prompt prompt(*backend_, c);
        EXPECT_TRUE(near(prompt.attend(), expected, tolerances_.prefill_attention)) << text(c);
        EXPECT_TRUE(near(prompt.attend(true), expected, tolerances_.prefill_attention))
            << "in place";
      }
    }
  }
}

// Many blocks of keys, of which later ones have far greater scores than all before.
TEST_P(PrefillOps, AttentionOfGrowingScoresIsNearTheReference) {
  for (const int head_dim : {64, 96, 128}) {
    for (const auto& [first, rows, pages] :
         {std::tuple{0, 700, 0}, {600, 70, 0}, {384, 300, 6}, {600, 70, 9}}) {
      const AttentionCase c{3, {1, 1, head_dim, 64}, first, rows, pages, 0.03f};
      const Floats expected = Prompt(*reference_, c).attend();
      for (const bool in_place : {false, true}) {
        EXPECT_LT(nmse(Prompt(*backend_, c).attend(in_place), expected), 1e-3) << text(c);
      }
    }
  }
}

// However the rows of a chunk of a prompt are divided among ops, and wherever a part begins.
TEST_P(PrefillOps, AttentionOfARowDependsOnItsPositionAlone) {
  std::mt19937 rng(1);
  for (const auto& [head_dim, group, pages] :
       {std::tuple{64, 1, 0}, {64, 3, 5}, {96, 7, 4}, {128, 1, 8}, {128, 3, 5}, {256, 1, 3}}) {
    const AttentionCase c{group, {1, 1, head_dim, 64}, 64 * pages, 400, pages};
    Prompt prompt(*backend_, c);
    const Floats all = prompt.attend();
    for (int division = 0; division < 5; ++division) {
      for (int first = 0; first < c.rows;) {
        const int most = std::min(c.rows - first, division == 0 ? 3 : 100 * division);
        const int count = std::uniform_int_distribution(1, most)(rng);
        const Floats part = prompt.attend(first, count, division % 2 == 1);
        ASSERT_TRUE(same_bits(part.data(), &all[first * prompt.row_floats()], part.size()))
            << text(c) << ": " << count << " from " << first;
        first += count;
      }
    }
  }
}

TEST_P(PrefillOps, ThreadsDoNotChangeBitsOfAttention) {
  const auto single = make_test_backend(GetParam(), 1);
  for (const int pages : {0, 2}) {
    const AttentionCase c{6, {1, 2, 96, 64}, 150, 150, pages};
    const Floats a = Prompt(*backend_, c).attend();
    const Floats b = Prompt(*single, c).attend(true);
    EXPECT_TRUE(same_bits(a.data(), b.data(), a.size())) << text(c);
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(PrefillOps);

}  // namespace
}  // namespace quantspec
