// Products in bf16 and the panels of what they multiply, of every instruction set that has them.
#include "backend/cpu/kernels_bf16.h"

#include <cmath>
#include <limits>

#include "backend/cpu/test_support.h"

namespace quantspec::cpu {
namespace {

std::vector<std::uint16_t> random_bf16(std::size_t count, unsigned seed) {
  std::vector<std::uint16_t> bits;
  for (const float x : random_floats(count, seed)) {
    bits.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
  }
  return bits;
}

// A product; rows of A have NaN after their end, C has columns that nothing may write.
struct Product {
  Product(int rows, int panels, int depth)
      : rows(rows),
        panels(panels),
        depth(depth),
        a(random_bf16(std::size_t(rows) * stride(), 1)),
        b(random_bf16(std::size_t(panels) * depth * 16, 2)) {
    for (int r = 0; r < rows; ++r) std::fill_n(&a[r * stride() + depth], kGap, 0x7fc0);
  }

  std::vector<float> run(const Bf16Kernels& kernels, int first, int count, bool accumulate) const {
    Guarded c(std::size_t(count) * columns(), kBefore);
    kernels.panel_gemm({.a = &a[first * stride()],
                        .a_stride = stride(),
                        .rows = count,
                        .panels = b.data(),
                        .panel_stride = std::ptrdiff_t{16} * depth,
                        .num_panels = panels,
                        .depth = depth,
                        .c = c.data(),
                        .c_stride = columns(),
                        .accumulate = accumulate});
    EXPECT_TRUE(c.intact());
    return c.values();
  }
  void expect_near(const std::vector<float>& c, bool accumulate) const {
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < columns(); ++j) {
        double sum = accumulate || j >= 16 * panels ? kBefore : 0.0f, magnitude = std::abs(sum);
        for (int k = 0; k < depth && j < 16 * panels; ++k) {
          const double product =
              double{bf16_to_f32(a[r * stride() + k])} *
              bf16_to_f32(b[(j / 16 * depth + (k & ~1)) * 16 + j % 16 * 2 + k % 2]);
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(c[r * columns() + j], sum, 2e-6 * magnitude)
            << rows << " rows, " << panels << " panels, depth " << depth << ": " << r << ", " << j;
      }
    }
  }

  static constexpr int kGap = 6;
  static constexpr float kBefore = 0.5f;
  int stride() const { return depth + kGap; }
  int columns() const { return 16 * panels + 3; }

  int rows, panels, depth;
  std::vector<std::uint16_t> a, b;
};

class Bf16KernelsTest : public IsaTest {
 protected:
  void SetUp() override {
    if (context().kernels.bf16 == nullptr) GTEST_SKIP() << "multiplies no bf16";
  }
  const Bf16Kernels& kernels() { return *context().kernels.bf16; }
};

TEST_P(Bf16KernelsTest, ProductsAreNearExactAndTouchNothingElse) {
  for (const int rows : {1, 5, 16, 17, 32, 33, 49}) {
    for (const int panels : {1, 2, 5}) {
      for (const int depth : {2, 16, 32, 80, 300, 1536}) {
        const Product product(rows, panels, depth);
        for (const bool accumulate : {false, true}) {
          product.expect_near(product.run(kernels(), 0, rows, accumulate), accumulate);
        }
      }
    }
  }
}

TEST_P(Bf16KernelsTest, ProductsGiveARowTheSameBitsWhateverIsBesideIt) {
  for (const int depth : {48, 200, 1536}) {
    const Product product(100, 3, depth);
    const std::vector<float> all = product.run(kernels(), 0, 100, true);
    for (const int count : {1, 2, 15, 16, 17, 31, 32, 33, 64}) {
      for (const int first : {0, 1, 7, 36}) {
        const auto from = all.begin() + std::ptrdiff_t{first} * product.columns();
        EXPECT_TRUE(same_bits(product.run(kernels(), first, count, true),
                              {from, from + std::ptrdiff_t{count} * product.columns()}))
            << count << " rows from " << first << ", depth " << depth;
      }
    }
  }
}

TEST_P(Bf16KernelsTest, PanelsHaveTheRowsAndZeros) {
  for (const int count : {1, 15, 16}) {
    for (const int inputs : {1, 31, 32, 33, 200}) {
      const int depth = (inputs + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
      const std::vector<std::uint16_t> rows = random_bf16(std::size_t(count) * inputs, 3);
      std::vector<std::uint16_t> panel(16 * depth + 1, 77);
      kernels().pair_rows(rows.data(), count, inputs, panel.data());
      for (int k = 0; k < depth; ++k) {
        for (int i = 0; i < 16; ++i) {
          const int wanted = i < count && k < inputs ? rows[i * inputs + k] : 0;
          ASSERT_EQ(panel[(k & ~1) * 16 + 2 * i + k % 2], wanted) << count << " x " << inputs;
        }
      }
      EXPECT_EQ(panel.back(), 77);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Bf16KernelsTest, testing::ValuesIn(supported_isa_list()),
                         isa_test_name);

}  // namespace
}  // namespace quantspec::cpu
