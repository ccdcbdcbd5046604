#include "base/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "base/thread_pool.h"

#if defined(QUANTSPEC_GEMM_ONEDNN)
extern "C" {
void omp_set_num_threads(int num_threads);
int omp_get_max_threads(void);
}
#endif

namespace quantspec {
namespace {

std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  const CounterRng random(seed);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = 2.0f * random.uniform(static_cast<std::int64_t>(i), RandomStream::kSample) - 1.0f;
  }
  return x;
}

constexpr int kGap = 3;  // elements between two rows

struct Case {
  Case(int m, int n, int k, int form)
      : a(random_floats(std::size_t{2} * (m + kGap) * (k + kGap), m)),
        b(random_floats(std::size_t{2} * (n + kGap) * (k + kGap), n)),
        product{.transpose_a = (form & 1) != 0,
                .transpose_b = (form & 2) != 0,
                .accumulate = (form & 4) != 0,
                .m = m,
                .n = n,
                .k = k,
                .alpha = (form & 8) != 0 ? -0.5f : 1.0f,
                .a = a.data(),
                .lda = (product.transpose_a ? m : k) + kGap,
                .b = b.data(),
                .ldb = (product.transpose_b ? k : n) + kGap,
                .c = nullptr,
                .ldc = n + kGap} {}
  std::vector<float> a, b;
  Gemm product;
};

double exact_product(const Gemm& g, int i, int j) {
  double sum = 0.0;
  for (int t = 0; t < g.k; ++t) {
    const float a = g.transpose_a ? g.a[t * g.lda + i] : g.a[i * g.lda + t];
    const float b = g.transpose_b ? g.b[j * g.ldb + t] : g.b[t * g.ldb + j];
    sum += double{a} * b;
  }
  return g.alpha * sum;
}

TEST(Gemm, IsTheProductInEveryFormAndTouchesNothingElse) {
  const int sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {16, 48, 64}, {33, 17, 129}, {128, 256, 96}};
  for (const auto& [m, n, k] : sizes) {
    for (int form = 0; form < 16; ++form) {
      Case it(m, n, k, form);
      const std::vector<float> before = random_floats(std::size_t(m) * it.product.ldc, 9);
      std::vector<float> c = before;
      it.product.c = c.data();
      gemm(it.product);
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < it.product.ldc; ++j) {
          const float old = before[i * it.product.ldc + j], now = c[i * it.product.ldc + j];
          if (j >= n) {
            ASSERT_EQ(now, old) << "row " << i << ", beyond its end";
            continue;
          }
          const double wanted = exact_product(it.product, i, j) + (it.product.accumulate ? old : 0);
          // k terms of magnitude at most 1, each rounded to 2^-24.
          ASSERT_NEAR(now, wanted, 1e-7 * (k + 2))
              << m << "x" << n << "x" << k << ", form " << form;
        }
      }
    }
  }
}

TEST(Gemm, DoesNotReadWhatItReplaces) {
  Case it(8, 16, 32, 0);
  std::vector<float> c(8 * it.product.ldc, std::numeric_limits<float>::quiet_NaN());
  it.product.c = c.data();
  gemm(it.product);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 16; ++j) EXPECT_TRUE(std::isfinite(c[i * it.product.ldc + j]));
  }
}

TEST(Gemm, HasTheSameBitsFromEveryThread) {
  ThreadPool pool(4);
  Case it(128, 256, 384, 2);
  const std::size_t size = std::size_t{128} * it.product.ldc;
  std::vector<std::vector<float>> results(16, std::vector<float>(size));
  pool.parallel_for(16, [&](std::int64_t index, int) {
    Gemm product = it.product;
    product.c = results[index].data();
    gemm(product);
  });
  for (const auto& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), size * sizeof(float)), 0);
  }
}

std::vector<std::uint16_t> random_bf16(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> bits(count);
  const std::vector<float> x = random_floats(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[i]) >> 16);
  }
  return bits;
}

class Bf16GemmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (bf16_unit() == Bf16Unit::kNone) GTEST_SKIP() << "this processor multiplies no bf16";
  }
};

TEST_F(Bf16GemmTest, IsTheProductAndTouchesNothingElse) {
  const int sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {16, 48, 64}, {33, 17, 129}, {144, 256, 576}};
  for (const auto& [m, n, k] : sizes) {
    const auto a = random_bf16(std::size_t(m) * k, m), b = random_bf16(std::size_t(n) * k, n);
    const std::size_t count = std::size_t(m) * n;
    std::vector<float> c(count + 16, std::numeric_limits<float>::quiet_NaN());
    std::fill(c.begin() + static_cast<std::ptrdiff_t>(count), c.end(), 3.0f);
    gemm(Bf16Gemm{m, n, k, a.data(), b.data(), c.data()});
    for (std::size_t i = count; i < c.size(); ++i) EXPECT_EQ(c[i], 3.0f);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double wanted = 0.0;
        for (int t = 0; t < k; ++t) {
          wanted += double{bf16_to_f32(a[i * k + t])} * bf16_to_f32(b[j * k + t]);
        }
        ASSERT_NEAR(c[i * n + j], wanted, 1e-7 * (k + 2)) << m << "x" << n << "x" << k;
      }
    }
  }
}

// Of every number of rows that it holds for, from other places each; inputs and outputs with and
// without whole vectors, tiles and blocks.
TEST_F(Bf16GemmTest, GivesARowTheSameBitsWhateverIsBesideIt) {
  constexpr int kRows = 300;
  const int step = bf16_row_step();
  for (const int k : {64, 200, 576, 1536, 8960}) {
    for (const int n : {1, 64, 100, 256}) {
      const auto a = random_bf16(std::size_t(kRows) * k, k), b = random_bf16(std::size_t(n) * k, n);
      const auto rows_from = [&](int first, int m) {
        std::vector<float> c(std::size_t(m) * n);
        gemm(Bf16Gemm{m, n, k, &a[std::size_t(first) * k], b.data(), c.data()});
        return c;
      };
      std::vector<float> whole;
      for (int first = 0; first + kGemmMostRows <= kRows; first += kGemmMostRows) {
        const auto some = rows_from(first, kGemmMostRows);
        whole.insert(whole.end(), some.begin(), some.end());
      }
      const int there = static_cast<int>(whole.size()) / n;
      for (int m = step; m <= kGemmMostRows; m += step) {
        for (const int first : {1, 7, 16, 75, 131}) {
          if (first + m > there) continue;
          const std::vector<float> c = rows_from(first, m);
          ASSERT_EQ(std::memcmp(c.data(), &whole[std::size_t(first) * n], c.size() * sizeof(float)),
                    0)
              << m << " rows from " << first << ", " << n << " x " << k;
        }
      }
    }
  }
}

int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string key, value; status >> key; std::getline(status, value)) {
    if (key == "Threads:") {
      status >> value;
      return std::stoi(value);
    }
  }
  return -1;
}

TEST(Gemm, StartsNoThreadsAndLeavesTheCallersOpenMpAlone) {
#if defined(QUANTSPEC_GEMM_ONEDNN)
  const int before = omp_get_max_threads();
  omp_set_num_threads(4);
#endif
  Case it(512, 512, 512, 0);
  std::vector<float> c(std::size_t{512} * it.product.ldc);
  it.product.c = c.data();
  const int threads = threads_of_this_process();
  gemm(it.product);
  if (bf16_unit() != Bf16Unit::kNone) {
    const auto a = random_bf16(512 * 512, 1);
    gemm(Bf16Gemm{512, 512, 512, a.data(), a.data(), c.data()});
  }
  EXPECT_EQ(threads_of_this_process(), threads);
#if defined(QUANTSPEC_GEMM_ONEDNN)
  EXPECT_EQ(omp_get_max_threads(), 4);
  omp_set_num_threads(before);
#endif
}

}  // namespace
}  // namespace quantspec
