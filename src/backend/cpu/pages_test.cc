#include "backend/cpu/pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/packing.h"
#include "base/dtype.h"
#include "base/error.h"

namespace quantspec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::byte kCanary{0xa5};

// Memory with guards on both sides.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : size_(bytes), bytes_(bytes + 2 * kGuard, kCanary) {}
  std::byte* data() { return bytes_.data() + kGuard; }
  std::size_t size() const { return size_; }
  bool intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kCanary || bytes_[kGuard + size_ + i] != kCanary) return false;
    }
    return true;
  }
  bool operator==(const Guarded&) const = default;

 private:
  static constexpr std::size_t kGuard = 192;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

struct Pages {
  Pages(const KvShape& shape, int count)
      : upper(count * shape.units() * shape.upper_unit_bytes()),
        lower(count * shape.units() * shape.lower_unit_bytes()) {
    for (int i = 0; i < count; ++i) {
      planes.push_back({upper.data() + i * shape.units() * shape.upper_unit_bytes(),
                        lower.data() + i * shape.units() * shape.lower_unit_bytes()});
    }
  }
  Guarded upper, lower;
  std::vector<PagePlanes> planes;
};

// What to quantize: [kv head][position][channel].
struct Tokens {
  int head_dim;
  int count;
  std::vector<float> keys, values;

  Tokens(const KvShape& shape, int count)
      : head_dim(shape.head_dim),
        count(count),
        keys(static_cast<std::size_t>(shape.num_kv_heads) * count * shape.head_dim),
        values(keys.size()) {}
  float* key(int head, int t) { return &keys[(std::size_t{1} * head * count + t) * head_dim]; }
  float* value(int head, int t) { return &values[(std::size_t{1} * head * count + t) * head_dim]; }
};

Tokens random_tokens(const KvShape& shape, int count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Tokens tokens(shape, count);
  for (float& x : tokens.keys) x = normal(rng);
  for (float& x : tokens.values) x = 0.3f * normal(rng) + 0.1f;
  return tokens;
}

// One group of each awkward kind, in channels of the keys and in tokens of the values.
Tokens awkward_tokens(const KvShape& shape, int count, unsigned seed) {
  Tokens tokens = random_tokens(shape, count, seed);
  std::mt19937 rng(seed + 1);
  const auto awkward = [&](int kind, int i) -> float {
    switch (kind) {
      case 0:
        return 3.25f;
      case 1:
        return 0.0f;
      case 2:
        return i % 3 == 1 ? -0.0f : 0.0f;
      case 3:
        return i == 5 ? 1e30f : 1.0f;  // infinite in fp16
      case 4:
        return i == 7 ? std::nanf("") : 0.5f;
      case 5:
        return i == 2 ? -kInfinity : 0.0f;
      case 6:
        return 6e-8f * static_cast<float>(rng() % 5);  // subnormal in fp16
      case 7:
        return i % 2 ? 65504.0f : -65504.0f;
      case 8:
        return 65504.0f - 32.0f * (i % 4);  // the offset is near the end of fp16
      case 9:
        return 1e-4f * static_cast<float>(rng() % 1000);
      case 10:
        return -2.0f + (i % 2 ? 6e-4f : 0.0f);  // the scale is subnormal
      default:
        return -0.0f;
    }
  };
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    for (int kind = 0; kind < 12; ++kind) {
      for (int t = 0; t < count; ++t) {
        tokens.key(head, t)[kind + 1] = awkward(kind, t % shape.page_size);
      }
      for (int c = 0; c < shape.head_dim; ++c) {
        tokens.value(head, kind + 2)[c] = awkward(kind, c % kValueGroup);
      }
    }
  }
  return tokens;
}

Guarded full_kv_of(const KvShape& shape, Tokens& tokens, int capacity, int first_position) {
  Guarded memory(full_kv_bytes(shape, capacity));
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    for (int t = 0; t < tokens.count; ++t) {
      write_full_kv(shape, {memory.data(), capacity}, head, first_position + t, 1,
                    tokens.key(head, t), tokens.value(head, t));
    }
  }
  return memory;
}

float through_fp16(float x) { return f16_to_f32(f32_to_f16(x)); }

// The canonical unit of positions [first, first + page_size) of `tokens`.
void expected_unit(const KvShape& shape, Tokens& tokens, int head, int first, std::byte* upper,
                   std::byte* lower) {
  const std::size_t count = static_cast<std::size_t>(shape.page_size) * shape.head_dim;
  std::vector<float> keys(count), values(count);
  for (std::size_t i = 0; i < count; ++i) {
    keys[i] = through_fp16(tokens.key(head, first)[i]);
    values[i] = through_fp16(tokens.value(head, first)[i]);
  }
  encode_unit(shape, keys.data(), values.data(), upper, lower);
}

class PagesOnIsa : public testing::TestWithParam<Isa> {
 protected:
  const AttentionKernels& kernels() const { return cpu::kernels(GetParam()).attention; }
  void quantize_layer(ThreadPool& pool, const KvShape& shape, int layer, FullKv source,
                      int first_position, std::span<const PagePlanes> pages) const {
    quantize_pages(kernels(), pool, shape, layer, {&source, 1}, first_position, pages);
  }
  ThreadPool pool_{2};
};

const KvShape kShapes[] = {{1, 2, 128, 128}, {2, 3, 64, 64},  {2, 1, 80, 32}, {1, 2, 96, 128},
                           {1, 2, 256, 64},  {1, 1, 144, 48}, {1, 1, 16, 16}, {1, 1, 256, 256}};

std::string description(const KvShape& shape) {
  return "head_dim " + std::to_string(shape.head_dim) + " page " + std::to_string(shape.page_size);
}

TEST_P(PagesOnIsa, BytesEqualTheCanonicalCodec) {
  for (const KvShape& shape : kShapes) {
    for (const bool awkward : {false, true}) {
      if (awkward && shape.page_size < 32) continue;
      SCOPED_TRACE(description(shape) + (awkward ? " awkward" : ""));
      const int first_position = 3 * shape.page_size, count = 2 * shape.page_size;
      Tokens tokens = awkward ? awkward_tokens(shape, count, 7) : random_tokens(shape, count, 8);
      Guarded full = full_kv_of(shape, tokens, count, first_position);
      const Guarded before = full;
      Pages pages(shape, 2);
      const int layer = shape.num_layers - 1;
      quantize_layer(pool_, shape, layer, {full.data(), count}, first_position, pages.planes);
      EXPECT_TRUE(full == before);
      EXPECT_TRUE(pages.upper.intact());
      EXPECT_TRUE(pages.lower.intact());
      for (int page = 0; page < 2; ++page) {
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          std::vector<std::byte> upper(shape.upper_unit_bytes()), lower(shape.lower_unit_bytes());
          auto upper_wanted = upper, lower_wanted = lower;
          expected_unit(shape, tokens, head, page * shape.page_size, upper_wanted.data(),
                        lower_wanted.data());
          export_unit(shape, layer, head, pages.planes[page], upper.data(), lower.data());
          EXPECT_EQ(upper, upper_wanted) << "page " << page << " head " << head;
          EXPECT_EQ(lower, lower_wanted) << "page " << page << " head " << head;
        }
      }
    }
  }
}

TEST_P(PagesOnIsa, BytesDoNotDependOnTheNumberOfThreads) {
  const KvShape shape{1, 3, 96, 64};
  Tokens tokens = random_tokens(shape, 4 * 64, 10);
  Guarded full = full_kv_of(shape, tokens, 4 * 64, 0);
  Pages one(shape, 4), four(shape, 4);
  ThreadPool single(1), several(4);
  quantize_layer(single, shape, 0, {full.data(), 4 * 64}, 0, one.planes);
  quantize_layer(several, shape, 0, {full.data(), 4 * 64}, 0, four.planes);
  EXPECT_TRUE(one.upper == four.upper);
  EXPECT_TRUE(one.lower == four.lower);
}

INSTANTIATE_TEST_SUITE_P(Isas, PagesOnIsa, testing::ValuesIn(supported_isa_list()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Pages, ImportAfterExportRestoresEveryByte) {
  std::mt19937 rng(11);
  for (const KvShape& shape : kShapes) {
    SCOPED_TRACE(description(shape));
    Pages from(shape, 1), to(shape, 1);
    for (Guarded* memory : {&from.upper, &from.lower}) {
      for (std::size_t i = 0; i < memory->size(); ++i) memory->data()[i] = std::byte(rng());
    }
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        Guarded upper(shape.upper_unit_bytes()), lower(shape.lower_unit_bytes());
        export_unit(shape, layer, head, from.planes[0], upper.data(), lower.data());
        import_unit(shape, layer, head, upper.data(), lower.data(), to.planes[0]);
        EXPECT_TRUE(upper.intact() && lower.intact());
      }
    }
    EXPECT_TRUE(from.upper == to.upper);
    EXPECT_TRUE(from.lower == to.lower);
  }
}

TEST(Pages, TileNibblesAreAsDocumented) {
  EXPECT_EQ(tile_nibble(0, 0, 32), 0u);
  EXPECT_EQ(tile_nibble(0, 4, 32), 1u);                     // the high half of byte 0
  EXPECT_EQ(tile_nibble(3, 2, 32), 2u * (4 * 3 + 2));       // byte 4 i + j
  EXPECT_EQ(tile_nibble(3, 9, 32), 2u * (64 + 4 * 3 + 1));  // the second tile
  EXPECT_EQ(tile_nibble(16, 0, 32), 2u * 4 * 64);           // the second block: 32 / 8 tiles on
}

TEST(Pages, CopyMovesExactlyItsPositions) {
  const KvShape shape{1, 2, 80, 32};
  ThreadPool pool(2);
  for (const auto& [first, count] : {std::pair{5, 60}, {32, 32}, {47, 1}, {16, 17}, {40, 0}}) {
    Tokens tokens = random_tokens(shape, 128, 12);
    Guarded source = full_kv_of(shape, tokens, 128, 0), target(full_kv_bytes(shape, 64));
    const Guarded untouched = target;
    Guarded expected = target;
    copy_full_kv(pool, shape, {source.data(), 128}, {target.data(), 64}, first, count);
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      for (int t = first; t < first + count; ++t) {
        write_full_kv(shape, {expected.data(), 64}, head, t, 1, tokens.key(head, t),
                      tokens.value(head, t));
      }
    }
    EXPECT_TRUE(target == expected) << first << " " << count;
    EXPECT_EQ(target == untouched, count == 0);
  }
}

TEST(Pages, WritingRoundsToFp16AndReadingGivesItBack) {
  const KvShape shape{1, 1, 16, 16};
  Guarded full(full_kv_bytes(shape, 16));
  std::vector<float> key(16, 1.0f + 0x1p-11f), value(16, 1e30f), k(16), v(16);
  write_full_kv(shape, {full.data(), 16}, 0, 16 + 3, 1, key.data(), value.data());
  read_full_kv(shape, {full.data(), 16}, 0, 3, 1, k.data(), v.data());
  EXPECT_EQ(k, std::vector<float>(16, 1.0f));
  EXPECT_EQ(v, std::vector<float>(16, kInfinity));
  EXPECT_TRUE(full.intact());
}

TEST(Pages, ShapesThatNoKernelHandlesAreErrors) {
  EXPECT_NO_THROW(check_shape({1, 1, 256, 256}));
  EXPECT_THROW(check_shape({1, 1, 72, 128}), Error);
  EXPECT_THROW(check_shape({1, 1, 272, 128}), Error);
  EXPECT_THROW(check_shape({1, 1, 128, 512}), Error);
  EXPECT_THROW(check_shape({1, 1, 128, 0}), Error);
}

}  // namespace
}  // namespace quantspec::cpu
