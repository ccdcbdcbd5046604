#include "prepare/linear_algebra.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "prepare/test_support.h"

namespace quantspec {
namespace {

constexpr int kSizes[] = {1, 5, 48, 128, 129, 300};

TEST(Gram, IsTheSumOfOuterProducts) {
  ThreadPool pool(2);
  for (const int size : kSizes) {
    constexpr int kRows = 37;
    const std::vector<float> x = uniform_floats(std::size_t{kRows} * size, size);
    Gram gram(size);
    gram.add(pool, x.data(), 20);
    gram.add(pool, x.data() + 20 * size, kRows - 20);
    gram.complete();
    EXPECT_EQ(gram.rows(), kRows);
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        double sum = 0.0;
        for (int r = 0; r < kRows; ++r) sum += double{x[r * size + i]} * x[r * size + j];
        ASSERT_NEAR(gram.at(i, j), sum, 1e-5) << size << ": " << i << ", " << j;
      }
    }
  }
}

TEST(InverseFactor, TimesItsTransposeIsTheInverse) {
  constexpr float kDamping = 0.01f;
  ThreadPool pool(2);
  for (const int size : kSizes) {
    // Fewer rows than inputs, too: the sum is then singular, and only damping makes it invertible.
    for (const int rows : {size / 2 + 1, 4 * size}) {
      const std::vector<float> x = correlated_rows(rows, size, size);
      Gram gram(size);
      gram.add(pool, x.data(), rows);
      gram.complete();
      const std::vector<float> u = inverse_factor(pool, gram, kDamping);
      double trace = 0.0;
      for (int i = 0; i < size; ++i) trace += gram.at(i, i);
      const double added = kDamping * trace / size;
      // U H U^T = I says the same as U^T U = H^-1.
      for (int i = 0; i < size; ++i) {
        std::vector<double> row(size);
        for (int k = i; k < size; ++k) {
          for (int j = 0; j < size; ++j) {
            row[j] += u[i * size + k] * (gram.at(k, j) + (k == j ? added : 0.0));
          }
        }
        for (int j = 0; j < size; ++j) {
          double sum = 0.0;
          for (int k = j; k < size; ++k) sum += row[k] * u[j * size + k];
          ASSERT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-3) << size << ": " << i << ", " << j;
          if (j < i) {
            ASSERT_EQ(u[i * size + j], 0.0f);
          }
        }
      }
    }
  }
}

TEST(InverseFactor, InputsThatAreNotFiniteAreRefused) {
  ThreadPool pool(1);
  std::vector<float> x = uniform_floats(10 * 48, 1);
  x[50] = std::numeric_limits<float>::quiet_NaN();
  Gram gram(48);
  gram.add(pool, x.data(), 10);
  gram.complete();
  EXPECT_THROW(inverse_factor(pool, gram, 0.01f), Error);
}

TEST(InverseFactor, InputsThatNeverComeAreNoError) {
  ThreadPool pool(1);
  Gram gram(48);
  gram.complete();
  const std::vector<float> u = inverse_factor(pool, gram, 0.01f);
  for (int i = 0; i < 48; ++i) EXPECT_EQ(u[i * 48 + i], 1.0f);
}

}  // namespace
}  // namespace quantspec
