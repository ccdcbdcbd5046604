#include "base/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

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
  EXPECT_EQ(threads_of_this_process(), threads);
#if defined(QUANTSPEC_GEMM_ONEDNN)
  EXPECT_EQ(omp_get_max_threads(), 4);
  omp_set_num_threads(before);
#endif
}

}  // namespace
}  // namespace quantspec
