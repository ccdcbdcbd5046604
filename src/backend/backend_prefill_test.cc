// The ops of Phase::kPrefill, and prefill_attention, of every backend against the reference, and
// against themselves: a row has its bits by its index, however many rows follow.
#include <numeric>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

class PrefillOps : public OpTest {};

// --- products ------------------------------------------------------------------------------------

constexpr int kAllRows = 1100;

// Every number up to 200, and some around those that tiles may be of.
std::vector<int> row_counts() {
  std::vector<int> counts(200);
  std::iota(counts.begin(), counts.end(), 1);
  counts.insert(counts.end(), {255, 256, 257, 383, 511, 512, 513, 1000, 1023, 1024, 1025});
  return counts;
}

// run(rows): the rows of an op's results, of each as many floats.
template <typename Run>
void expect_equal_rows(const std::string& what, const Run& run) {
  const Floats all = run(kAllRows);
  for (const int rows : row_counts()) {
    const Floats some = run(rows);
    ASSERT_EQ(some.size(), all.size() / kAllRows * rows);
    ASSERT_TRUE(same_bits(some.data(), all.data(), some.size())) << what << ", " << rows << " rows";
  }
}

Floats first_rows(const Floats& x, int rows) {
  return {x.begin(), x.begin() + std::ssize(x) / kAllRows * rows};
}

struct Size {
  int inputs, outputs;
};
constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_P(PrefillOps, AddedRowsDoNotDependOnTheirNumber) {
  for (const Size size : {Size{48, 80}, Size{384, 260}, Size{1408, 17}, Size{200, 1}}) {
    for (const DType dtype : kDtypes) {
      const TestLinear linear(*backend_, Matrix(size.outputs, size.inputs, dtype, 2),
                              normal_floats(size.outputs, 3));
      const Floats in = normal_floats(std::size_t{kAllRows} * size.inputs, 4);
      const Floats before = normal_floats(std::size_t{kAllRows} * size.outputs, 5);
      const auto run = [&](int rows) {
        const Guarded<float> x_in(*backend_, first_rows(in, rows));
        Guarded<float> x(*backend_, first_rows(before, rows));
        backend_->add_linear(
            {Phase::kPrefill, WeightRead::kFull, x_in.data(), rows, linear.get(), x.data()});
        EXPECT_TRUE(x.intact() && x_in.intact());
        return x.values();
      };
      expect_equal_rows(fmt::format("{} to {} {}", size.inputs, size.outputs, name_of(dtype)), run);
    }
  }
}

TEST_P(PrefillOps, GatedRowsDoNotDependOnTheirNumber) {
  constexpr Size kSize{256, 301};
  const TestLinear gate(*backend_, Matrix(kSize.outputs, kSize.inputs, DType::kBF16, 2));
  const TestLinear up(*backend_, Matrix(kSize.outputs, kSize.inputs, DType::kBF16, 3));
  const Guarded<float> norm(*backend_, normal_floats(kSize.inputs, 4));
  const Floats in = normal_floats(std::size_t{kAllRows} * kSize.inputs, 5);
  const auto run = [&](int rows) {
    const Guarded<float> x(*backend_, first_rows(in, rows));
    Guarded<float> out(*backend_, std::size_t(rows) * kSize.outputs);
    backend_->gate_up({Phase::kPrefill, WeightRead::kFull, x.data(), rows, Norm{norm.data(), 1e-5f},
                       gate.get(), up.get(), out.data()});
    EXPECT_TRUE(out.intact());
    return out.values();
  };
  expect_equal_rows("gate_up", run);
}

// Of each row its query, key and value.
TEST_P(PrefillOps, ProjectedRowsDoNotDependOnTheirNumber) {
  constexpr int kHeads = 6, kInputs = 192;
  const KvShape shape{1, 2, 80, 64};
  const int q_width = kHeads * shape.head_dim, kv_width = shape.num_kv_heads * shape.head_dim;
  const auto linear = [&](int outputs, int seed) {
    return TestLinear(*backend_, Matrix(outputs, kInputs, DType::kF16, seed),
                      normal_floats(outputs, seed + 1));
  };
  const TestLinear q = linear(q_width, 2), k = linear(kv_width, 4), v = linear(kv_width, 6);
  const Guarded<float> norm(*backend_, normal_floats(kInputs, 8));
  const Guarded<float> q_norm(*backend_, normal_floats(shape.head_dim, 9));
  const Guarded<float> k_norm(*backend_, normal_floats(shape.head_dim, 10));
  const Floats in = normal_floats(std::size_t{kAllRows} * kInputs, 11);
  const std::size_t angles = std::size_t{kAllRows} * shape.head_dim / 2;
  const Guarded<float> cos(*backend_, normal_floats(angles, 12));
  const Guarded<float> sin(*backend_, normal_floats(angles, 13));
  const auto run = [&](int rows) {
    const Guarded<float> x(*backend_, first_rows(in, rows));
    Guarded<float> q_out(*backend_, std::size_t(rows) * q_width);
    TestFullKv kv(*backend_, shape, 1104);
    const SequenceRows sequence{0, rows, 0, {{}, kv.get(), 0}};
    backend_->qkv({Phase::kPrefill,
                   WeightRead::kFull,
                   kHeads,
                   shape,
                   x.data(),
                   rows,
                   Norm{norm.data(), 1e-5f},
                   q.get(),
                   k.get(),
                   v.get(),
                   Norm{q_norm.data(), 1e-5f},
                   Norm{k_norm.data(), 1e-5f},
                   cos.data(),
                   sin.data(),
                   q_out.data(),
                   {&sequence, 1}});
    EXPECT_TRUE(q_out.intact() && kv.intact());
    const Floats queries = q_out.values();
    const std::ptrdiff_t dim = shape.head_dim, width = q_width + 2 * kv_width;
    Floats all(rows * width), keys(rows * dim), values(rows * dim);
    const auto place = [&](const Floats& from, std::ptrdiff_t size, std::ptrdiff_t column) {
      for (int i = 0; i < rows; ++i) {
        std::copy_n(from.begin() + i * size, size, all.begin() + i * width + column);
      }
    };
    place(queries, q_width, 0);
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      backend_->read_full_kv(shape, kv.get(), head, 0, rows, keys.data(), values.data());
      place(keys, dim, q_width + 2 * head * dim);
      place(values, dim, q_width + (2 * head + 1) * dim);
    }
    return all;
  };
  expect_equal_rows("qkv", run);
}

// --- attention -----------------------------------------------------------------------------------

struct AttentionCase {
  int num_heads;
  KvShape shape;
  int first_position;
  int rows;
  float growth = 0;  // of keys, from a position to the next: later ones have greater scores
};

Floats attend(Backend& backend, const AttentionCase& c, bool in_place) {
  const int dim = c.shape.head_dim, end = c.first_position + c.rows;
  TestFullKv kv(backend, c.shape, (end + 15) / 16 * 16);
  for (int p = 0; p < end; ++p) {
    for (int h = 0; h < c.shape.num_kv_heads; ++h) {
      kv.write(h, p, half_floats(dim, 100 * p + 2 * h, 1 + c.growth * p).data(),
               half_floats(dim, 100 * p + 2 * h + 1).data());
    }
  }
  Guarded<float> q(backend, normal_floats(std::size_t(c.rows) * c.num_heads * dim, 40));
  Guarded<float> out(backend, q.size());
  backend.prefill_attention({q.data(),
                             in_place ? q.data() : out.data(),
                             c.num_heads,
                             c.shape,
                             1.0f / std::sqrt(static_cast<float>(dim)),
                             c.first_position,
                             c.rows,
                             {.full = kv.get()}});
  EXPECT_TRUE(q.intact() && out.intact() && kv.intact());
  return in_place ? q.values() : out.values();
}

TEST_P(PrefillOps, AttentionIsNearTheReference) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const int group : {1, 3, 7}) {
      for (const auto& [first, rows] : {std::pair{0, 1}, {0, 37}, {0, 150}, {50, 33}, {133, 70}}) {
        if (group == 7 && rows != 70) continue;
        const AttentionCase c{2 * group, {1, 2, head_dim, 64}, first, rows};
        const Floats expected = attend(*reference_, c, false);
        EXPECT_TRUE(near(attend(*backend_, c, false), expected, tolerances_.prefill_attention))
            << head_dim << ", group " << group << ", " << rows << " rows at " << first;
        EXPECT_TRUE(near(attend(*backend_, c, true), expected, tolerances_.prefill_attention))
            << "in place";
      }
    }
  }
}

// Many blocks of keys, of which later ones have far greater scores than all before.
TEST_P(PrefillOps, AttentionOfGrowingScoresIsNearTheReference) {
  for (const int head_dim : {64, 96, 128}) {
    for (const auto& [first, rows] : {std::pair{0, 700}, {600, 70}}) {
      const AttentionCase c{3, {1, 1, head_dim, 64}, first, rows, 0.03f};
      const Floats expected = attend(*reference_, c, false);
      for (const bool in_place : {false, true}) {
        EXPECT_LT(nmse(attend(*backend_, c, in_place), expected), 1e-3)
            << head_dim << ", " << rows << " rows at " << first;
      }
    }
  }
}

TEST_P(PrefillOps, ThreadsDoNotChangeBitsOfAttention) {
  const auto single = make_test_backend(GetParam(), 1);
  const AttentionCase c{6, {1, 2, 96, 64}, 50, 150};
  const Floats a = attend(*backend_, c, false);
  const Floats b = attend(*single, c, true);
  EXPECT_TRUE(same_bits(a.data(), b.data(), a.size()));
}

QUANTSPEC_FOR_ALL_BACKENDS(PrefillOps);

}  // namespace
}  // namespace quantspec
