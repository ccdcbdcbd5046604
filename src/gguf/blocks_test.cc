#include "gguf/blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <set>
#include <vector>

#include "base/expect_error.h"
#include "gguf/gguf.h"

namespace quantspec {
namespace {

constexpr GgmlType kBlockTypes[] = {
    GgmlType::kQ8_0,   GgmlType::kQ4_0,   GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
    GgmlType::kQ2_K,   GgmlType::kQ3_K,   GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K,
    GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4};

std::uint64_t fnv1a(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<unsigned>(byte)) * 0x100000001b3u;
  return hash;
}

std::vector<float> decoded(GgmlType type, std::span<const std::byte> row, int cols,
                           const WeightFormat& format) {
  RowBuffer buffer(format, cols);
  read_row(type, row, cols, format, buffer.view());
  std::vector<float> values(cols);
  decode_row(format, cols, buffer.view(), /*upper_only=*/false, values.data());
  return values;
}

// tools/make_gguf_tests.py: values by the decoder of PyPI's gguf, for every type.
TEST(GgufBlocks, EveryTypeHasTheBitsOfGgmlsDecoder) {
  const Gguf gguf(std::filesystem::path(QUANTSPEC_TESTDATA) / "blocks.gguf");
  std::set<GgmlType> seen;
  for (const std::string& name : gguf.names()) {
    const GgufTensor& tensor = gguf.tensor(name);
    const auto cols = static_cast<int>(tensor.shape[0]);
    const auto format = checked_format(tensor.type, tensor.bytes, gguf.where(name));
    const auto expected = gguf.metadata().texts("values." + name).value();
    const std::size_t bytes = row_bytes(tensor.type, cols);
    ASSERT_EQ(tensor.bytes.size(), bytes * expected.size());
    for (std::size_t row = 0; row < expected.size(); ++row) {
      const auto values =
          decoded(tensor.type, tensor.bytes.subspan(row * bytes, bytes), cols, format);
      EXPECT_EQ(fmt::format("{:016x}", fnv1a(std::as_bytes(std::span(values)))), expected[row])
          << name << ", row " << row;
    }
    seen.insert(tensor.type);
  }
  EXPECT_EQ(seen, std::set(std::begin(kBlockTypes), std::end(kBlockTypes)));
}

// Codes and integers must be what their format has room for, whatever the bytes are.
TEST(GgufBlocks, CodesHaveNoMoreThanTheirBits) {
  for (const GgmlType type : kBlockTypes) {
    const WeightFormat format = format_of(type, "t");
    for (const std::byte byte : {std::byte{0x00}, std::byte{0x5a}, std::byte{0xff}}) {
      const std::vector<std::byte> row(row_bytes(type, 512), byte);
      RowBuffer buffer(format, 512);
      read_row(type, row, 512, format, buffer.view());
      for (const std::uint8_t code : buffer.codes) EXPECT_LT(code, 1 << format.bits);
    }
  }
}

// A code or a parameter beyond its place would show in the guards.
TEST(GgufBlocks, NothingIsWrittenOutsideOfARow) {
  for (const GgmlType type : kBlockTypes) {
    SCOPED_TRACE(name_of(type));
    const WeightFormat format = format_of(type, "t");
    const std::vector<std::byte> row(row_bytes(type, 256), std::byte{0x31});
    RowBuffer larger(format, 512);
    for (auto& scale : larger.scales) scale = {0x7777, 0x7777};
    std::fill(larger.codes.begin(), larger.codes.end(), 0x77);
    std::fill(larger.sub_scales.begin(), larger.sub_scales.end(), 0x77);
    std::fill(larger.sub_offsets.begin(), larger.sub_offsets.end(), 0x77);
    read_row(type, row, 256, format, larger.view());
    const auto untouched = [](const auto& values, auto guard) {
      for (std::size_t i = values.size() / 2; i < values.size(); ++i) EXPECT_EQ(values[i], guard);
    };
    untouched(larger.codes, 0x77);
    untouched(larger.sub_scales, 0x77);
    untouched(larger.scales, GroupScale{0x7777, 0x7777});
    untouched(larger.sub_offsets, 0x77);
  }
}

TEST(GgufBlocks, DenseTypesAndUnsupportedOnes) {
  EXPECT_EQ(format_of(GgmlType::kF32, "t"), dense_format(DType::kF32));
  EXPECT_EQ(format_of(GgmlType::kF16, "t"), dense_format(DType::kF16));
  EXPECT_EQ(format_of(GgmlType::kBF16, "t"), dense_format(DType::kBF16));
  EXPECT_TRUE(is_supported(GgmlType::kBF16));
  EXPECT_FALSE(is_supported(static_cast<GgmlType>(16)));
  EXPECT_EQ(row_bytes(GgmlType::kBF16, 7), 14u);
  expect_error(ErrorKind::kUnsupportedModel, {"f: tensor t", "IQ2_XXS", "Q4_K", "MXFP4"},
               [] { format_of(static_cast<GgmlType>(16), "f: tensor t"); });
  expect_error(ErrorKind::kUnsupportedModel, {"type 99"},
               [] { format_of(static_cast<GgmlType>(99), "f"); });
}

// Every fp16 number of every block, NaN and infinite.
TEST(GgufBlocks, ScalesThatAreNoNumbersAreRefused) {
  for (const GgmlType type : kBlockTypes) {
    if (type == GgmlType::kMXFP4) continue;
    const std::size_t size = block_size(type)->bytes;
    const bool has_offset = format_of(type, "t").has_offset;
    std::vector<std::byte> blocks(3 * size, std::byte{0});
    EXPECT_NO_THROW(checked_format(type, blocks, "t"));
    int refused = 0;
    for (std::size_t at = 2 * size; at + 1 < blocks.size(); ++at) {
      for (const int bits : {0x7c00, 0xfe00}) {
        blocks[at] = static_cast<std::byte>(bits & 0xff);
        blocks[at + 1] = static_cast<std::byte>(bits >> 8);
        try {
          checked_format(type, blocks, "f: tensor t");
        } catch (const Error& error) {
          EXPECT_STREQ(error.what(),
                       fmt::format("f: tensor t: block 2 of {} has a scale that is NaN "
                                   "or infinite; convert it again",
                                   name_of(type))
                           .c_str());
          ++refused;
        }
        blocks[at] = blocks[at + 1] = std::byte{0};
      }
    }
    EXPECT_EQ(refused, has_offset ? 4 : 2) << name_of(type);
  }
}

class Mxfp4 : public testing::Test {
 protected:
  // Blocks of these scales, of code 3 (the value 3).
  static std::vector<std::byte> blocks(const std::vector<int>& scales) {
    std::vector<std::byte> blocks;
    for (const int e : scales) {
      blocks.push_back(static_cast<std::byte>(e));
      blocks.insert(blocks.end(), 16, std::byte{0x33});
    }
    return blocks;
  }
  static WeightFormat format(const std::vector<std::byte>& blocks) {
    return checked_format(GgmlType::kMXFP4, blocks, "f: tensor t");
  }
};

TEST_F(Mxfp4, AnExponentIsChosenThatHoldsEveryScale) {
  for (const int span : {0, 5, 24, 25, 39}) {
    for (const int least : {0, 1, 2, 100, 254 - span}) {
      const auto two = blocks({least, least + span});
      const auto values = decoded(GgmlType::kMXFP4, two, 64, format(two));
      EXPECT_EQ(values[0], std::ldexp(3.0f, least - 128)) << least << "+" << span;
      EXPECT_EQ(values[63], std::ldexp(3.0f, least + span - 128)) << least << "+" << span;
    }
  }
  EXPECT_EQ(format(blocks({120})).exponent, -8);  // a scale of 1
}

TEST_F(Mxfp4, BlocksOfZerosDoNotCount) {
  auto three = blocks({120, 0, 254});
  std::fill(three.begin() + 18, three.begin() + 34, std::byte{0x08});
  std::fill(three.begin() + 35, three.end(), std::byte{0x80});
  EXPECT_EQ(format(three).exponent, -8);
  const auto values = decoded(GgmlType::kMXFP4, three, 96, format(three));
  for (int i = 32; i < 96; ++i) EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), 0u);
}

TEST_F(Mxfp4, ScalesTooFarApartAndNaNAreRefused) {
  expect_error(ErrorKind::kUnsupportedModel, {"f: tensor t", "2^40 apart", "2^39"}, [] {
    format(blocks({100, 140}));
  });
  expect_error(ErrorKind::kCorruptFile, {"f: tensor t", "block 1", "NaN"}, [] {
    format(blocks({100, 255}));
  });
}

}  // namespace
}  // namespace quantspec
