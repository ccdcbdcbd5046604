#include "backend/cpu/prefill.h"

#include <cmath>

#include "backend/cpu/packing.h"
#include "backend/cpu/prefill_attention.h"
#include "backend/cpu/test_support.h"

namespace quantspec::cpu {
namespace {

class PrefillTest : public IsaTest {};

// --- linear layers -------------------------------------------------------------------------------

std::vector<float> run(const Context& context, const Linear& linear, const std::vector<float>& x,
                       int rows, bool accumulate) {
  Guarded y(static_cast<std::size_t>(rows) * linear.outputs(), 1.0f);
  const Projection projection = {&linear, y.data()};
  project(context,
          {Phase::kPrefill, WeightRead::kTarget, x.data(), rows, {&projection, 1}, accumulate});
  EXPECT_TRUE(y.intact());
  return y.values();
}

TEST_P(PrefillTest, ProjectIsNearExact) {
  struct Case {
    DType dtype;
    int outputs, inputs, rows;
  };
  const Case cases[] = {{DType::kBF16, 3, 24, 1},     {DType::kF16, 257, 100, 130},
                        {DType::kF32, 300, 200, 256}, {DType::kBF16, 512, 512, 9},
                        {DType::kF16, 101, 1408, 40}, {DType::kBF16, 16, 8, 300}};
  for (const Case& c : cases) {
    for (const bool accumulate : {false, true}) {
      const TestMatrix matrix(c.dtype, c.outputs, c.inputs, 1);
      const std::vector<float> bias = random_floats(c.outputs, 2);
      const std::vector<float> x = random_floats(static_cast<std::size_t>(c.rows) * c.inputs, 3);
      const Linear linear = {.target = dense(matrix.view()),
                             .bias = accumulate ? nullptr : bias.data()};
      const std::vector<float> y = run(context(), linear, x, c.rows, accumulate);
      std::vector<float> weights;
      for (int o = 0; o < c.outputs; ++o) {
        for (int k = 0; k < c.inputs; ++k) weights.push_back(matrix.at(o, k));
      }
      weights = as_multiplied(context(), std::move(weights));
      const std::vector<float> in = as_multiplied(context(), x);
      for (int r = 0; r < c.rows; ++r) {
        for (int o = 0; o < c.outputs; ++o) {
          double sum = accumulate ? 1.0 : bias[o];
          double magnitude = std::abs(sum);
          for (int k = 0; k < c.inputs; ++k) {
            const double product = double{weights[o * c.inputs + k]} * in[r * c.inputs + k];
            sum += product;
            magnitude += std::abs(product);
          }
          ASSERT_NEAR(y[r * c.outputs + o], sum, 2e-6 * magnitude)
              << c.outputs << " x " << c.inputs << ", row " << r << ", output " << o;
        }
      }
    }
  }
}

// Nor on how many rows a tile of weights is multiplied by.
TEST_P(PrefillTest, ProjectDoesNotDependOnTheNumberOfThreads) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const TestMatrix matrix(dtype, 700, 200, 4);
    const std::vector<float> x = random_floats(300 * 200, 5);
    const Linear linear = {.target = dense(matrix.view())};
    const std::vector<float> expected = run(context(), linear, x, 300, false);
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      Scratch scratch(threads);
      EXPECT_TRUE(same_bits(run(on(pool, scratch), linear, x, 300, false), expected)) << threads;
    }
  }
}

TEST_P(PrefillTest, ProjectGivesARowTheSameBitsWhateverIsBesideIt) {
  constexpr int kInputs = 200, kOutputs = 300, kRows = 300;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const TestMatrix matrix(dtype, kOutputs, kInputs, 4);
    const std::vector<float> x = random_floats(kRows * kInputs, 5);
    const Linear linear = {.target = dense(matrix.view())};
    const std::vector<float> all = run(context(), linear, x, kRows, true);
    for (const int rows : {1, 2, 15, 16, 17, 40, 143, 144, 145, 299}) {
      const int first = kRows - rows;
      const std::vector<float> some(x.begin() + first * kInputs, x.end());
      EXPECT_TRUE(same_bits(run(context(), linear, some, rows, true),
                            {all.begin() + first * kOutputs, all.end()}))
          << rows;
    }
  }
}

// --- attention -----------------------------------------------------------------------------------

struct AttentionCase {
  int num_heads, num_kv_heads, head_dim, first_position, num_rows;
};

struct AttentionSetup {
  explicit AttentionSetup(const AttentionCase& a)
      : c(a),
        shape{1, a.num_kv_heads, a.head_dim, 64},
        end(a.first_position + a.num_rows),
        capacity((end + 15) / 16 * 16 + 16),
        width(a.num_heads * a.head_dim),
        q(random_floats(static_cast<std::size_t>(a.num_rows) * width, 81)),
        // Slots that hold no token are NaN: nothing may come of them.
        kv(2 * full_kv_elements(shape, capacity), 0x7e00) {
    const auto values = random_floats(kv.size(), 82);
    for (int head = 0; head < a.num_kv_heads; ++head) {
      for (int p = 0; p < end; ++p) {
        for (int i = 0; i < a.head_dim; ++i) {
          const std::size_t k = full_key_index(shape, capacity, head, p, i);
          const std::size_t v = full_value_row(shape, capacity, head, p) + i;
          kv[k] = f32_to_f16(values[k]);
          kv[v] = f32_to_f16(values[v]);
        }
      }
    }
  }

  std::vector<float> run(const Context& context) {
    Guarded out(q.size());
    attend(context, q.data(), out.data(), c.first_position, c.num_rows);
    EXPECT_TRUE(out.intact());
    return out.values();
  }
  void attend(const Context& context, const float* in, float* out, int first, int rows) {
    prefill_attention(context,
                      {in,
                       out,
                       c.num_heads,
                       shape,
                       scale(),
                       first,
                       rows,
                       {.full = {reinterpret_cast<std::byte*>(kv.data()), capacity}}},
                      {{}, shape, 0, 0}, {0, shape.num_kv_heads});
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.head_dim)); }

  // softmax(scale * q K^T) V of one row and head, in double but for what is rounded to bf16.
  std::vector<double> exact(const Context& context, int row, int head) const {
    const int kv_head = head / (c.num_heads / c.num_kv_heads);
    const int tokens = c.first_position + row + 1;
    std::vector<double> p(tokens), out(c.head_dim);
    std::vector<float> query(c.head_dim);
    for (int i = 0; i < c.head_dim; ++i) {
      query[i] = scale() * q[static_cast<std::size_t>(row) * width + head * c.head_dim + i];
    }
    query = as_multiplied(context, query);
    double most = -1e300, sum = 0.0;
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> key(c.head_dim);
      for (int i = 0; i < c.head_dim; ++i) {
        key[i] = f16_to_f32(kv[full_key_index(shape, capacity, kv_head, t, i)]);
      }
      key = as_multiplied(context, key);
      for (int i = 0; i < c.head_dim; ++i) p[t] += double{query[i]} * key[i];
      most = std::max(most, p[t]);
    }
    for (double& score : p) sum += score = std::exp(score - most);
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> value(c.head_dim);
      for (int i = 0; i < c.head_dim; ++i) {
        value[i] = f16_to_f32(kv[full_value_row(shape, capacity, kv_head, t) + i]);
      }
      value = as_multiplied(context, value);
      for (int i = 0; i < c.head_dim; ++i) out[i] += p[t] / sum * value[i];
    }
    return out;
  }

  AttentionCase c;
  KvShape shape;
  int end, capacity, width;
  std::vector<float> q;
  std::vector<std::uint16_t> kv;
};

TEST_P(PrefillTest, AttentionIsNearExact) {
  // In bf16 a probability may be off by 2^-9 of itself, and values go up to 5.
  const double bound = context().kernels.bf16 == nullptr ? 5e-6 : 5 * 0x1p-9;
  const AttentionCase cases[] = {{2, 2, 64, 0, 600},  {6, 2, 80, 0, 131},  {3, 1, 96, 300, 70},
                                 {2, 1, 128, 7, 260}, {1, 1, 256, 0, 40},  {4, 4, 128, 511, 1},
                                 {2, 2, 64, 0, 1},    {8, 1, 64, 250, 17}, {6, 2, 16, 33, 300}};
  for (const AttentionCase& c : cases) {
    AttentionSetup setup(c);
    const std::vector<float> out = setup.run(context());
    const int step = 1 + c.num_rows / 40;  // rows sampled; the first and the last among them
    for (int i = 0; i < c.num_rows;
         i += i + step < c.num_rows || i + 1 == c.num_rows ? step : c.num_rows - 1 - i) {
      for (int head = 0; head < c.num_heads; ++head) {
        const std::vector<double> expected = setup.exact(context(), i, head);
        for (int j = 0; j < c.head_dim; ++j) {
          ASSERT_NEAR(out[static_cast<std::size_t>(i) * setup.width + head * c.head_dim + j],
                      expected[j], bound)
              << c.num_heads << "/" << c.num_kv_heads << " x " << c.head_dim << ", row " << i
              << " of " << c.num_rows << " from " << c.first_position;
        }
      }
    }
  }
}

TEST_P(PrefillTest, AttentionDependsOnAbsolutePositionsAlone) {
  AttentionSetup setup({6, 2, 64, 0, 600});
  const std::vector<float> expected = setup.run(context());
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    Scratch scratch(threads);
    EXPECT_TRUE(same_bits(setup.run(on(pool, scratch)), expected)) << threads << " threads";
  }
  // In bands, and in place.
  std::vector<float> in_place = setup.q;
  for (int first = 0; first < 600; first += 250) {
    float* x = in_place.data() + static_cast<std::size_t>(first) * setup.width;
    setup.attend(context(), x, x, first, std::min(250, 600 - first));
  }
  EXPECT_TRUE(same_bits(in_place, expected));
}

INSTANTIATE_TEST_SUITE_P(Cpu, PrefillTest, testing::ValuesIn(supported_isa_list()), isa_test_name);

}  // namespace
}  // namespace quantspec::cpu
