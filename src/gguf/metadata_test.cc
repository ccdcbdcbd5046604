#include "gguf/metadata.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>

#include "base/expect_error.h"
#include "gguf/gguf.h"
#include "gguf/test_support.h"

namespace quantspec {
namespace {

// A file and what it says, which lies in it.
struct Parsed {
  explicit Parsed(const GgufWriter& writer)
      : file(writer.file()), metadata(parse_gguf(std::as_bytes(std::span(file)), "f").metadata) {}
  const std::string file;
  const GgufMetadata metadata;
};

// tools/make_gguf_tests.py: as the format's own library writes them.
TEST(GgufMetadata, ReadsEveryTypeOfTheGoldenFile) {
  const Gguf gguf(std::filesystem::path(QUANTSPEC_TESTDATA) / "blocks.gguf");
  const GgufMetadata& metadata = gguf.metadata();
  EXPECT_EQ(metadata.text("general.architecture"), "test");
  const std::vector<std::pair<std::string, std::int64_t>> integers = {
      {"uint8", 200},        {"int8", -100},         {"uint16", 60000},
      {"int16", -30000},     {"uint32", 4000000000}, {"int32", -2000000000},
      {"uint64", 1ll << 62}, {"int64", -(1ll << 62)}};
  for (const auto& [name, value] : integers) {
    EXPECT_EQ(metadata.integer("test." + name), value);
    EXPECT_EQ(metadata.integers("test." + name + "s"), std::vector(3, value));
  }
  EXPECT_EQ(metadata.real("test.float32"), 0.375);
  EXPECT_EQ(metadata.real("test.float64"), 0.1);
  EXPECT_EQ(metadata.reals("test.float32s"), std::vector(3, 0.375f));
  EXPECT_EQ(metadata.reals("test.float64s"), std::vector(3, 0.1f));
  EXPECT_EQ(metadata.flag("test.bool"), true);
  EXPECT_EQ(metadata.flags("test.bools"), std::vector(3, true));
  EXPECT_EQ(metadata.text("test.string"), "caf\u00e9");
  EXPECT_EQ(metadata.texts("test.strings"), std::vector<std::string_view>(3, "caf\u00e9"));
}

TEST(GgufMetadata, WhatIsMissingIsNothing) {
  const Parsed parsed(GgufWriter().add("k", 1).add("a", std::vector<float>{}));
  const GgufMetadata& metadata = parsed.metadata;
  EXPECT_TRUE(metadata.has("k"));
  EXPECT_FALSE(metadata.has("x"));
  EXPECT_FALSE(metadata.is_array("k"));
  EXPECT_TRUE(metadata.is_array("a"));
  EXPECT_EQ(metadata.keys(), (std::vector<std::string>{"a", "k"}));
  EXPECT_EQ(metadata.integer("x"), std::nullopt);
  EXPECT_EQ(metadata.real("x"), std::nullopt);
  EXPECT_EQ(metadata.flag("x"), std::nullopt);
  EXPECT_EQ(metadata.text("x"), std::nullopt);
  EXPECT_EQ(metadata.integers("x"), std::nullopt);
  EXPECT_EQ(metadata.reals("x"), std::nullopt);
  EXPECT_EQ(metadata.flags("x"), std::nullopt);
  EXPECT_EQ(metadata.texts("x"), std::nullopt);
  EXPECT_EQ(metadata.reals("a"), std::vector<float>{});
}

TEST(GgufMetadata, AWrongTypeIsNamed) {
  const Parsed parsed(GgufWriter()
                          .add("i", 1)
                          .add("f", 1.0f)
                          .add("b", true)
                          .add("t", "text")
                          .add("u", ~std::uint64_t{0})
                          .add("is", std::vector{1, 2})
                          .add("ts", std::vector<std::string>{"a"})
                          .add("us", std::vector{~std::uint64_t{0}}));
  const GgufMetadata& m = parsed.metadata;
  const auto wrong = [](const std::vector<std::string>& mentions, auto get) {
    expect_error(ErrorKind::kCorruptFile, mentions, get);
  };
  wrong({"f: metadata key \"t\" has type text; it must be an integer"}, [&] { m.integer("t"); });
  wrong({"\"f\" has type f32", "an integer"}, [&] { m.integer("f"); });
  wrong({"\"u\" has type u64", "below 2^63"}, [&] { m.integer("u"); });
  wrong({"\"us\" has type array of u64", "below 2^63"}, [&] { m.integers("us"); });
  wrong({"\"is\" has type array of i32", "an integer"}, [&] { m.integer("is"); });
  wrong({"\"i\" has type i32", "an array of integers"}, [&] { m.integers("i"); });
  wrong({"\"i\" has type i32", "an f32 or f64"}, [&] { m.real("i"); });
  wrong({"\"is\"", "an array of f32"}, [&] { m.reals("is"); });
  wrong({"\"i\"", "a bool"}, [&] { m.flag("i"); });
  wrong({"\"is\"", "an array of bool"}, [&] { m.flags("is"); });
  wrong({"\"ts\"", "a text"}, [&] { m.text("ts"); });
  wrong({"\"i\"", "a text"}, [&] { m.text("i"); });
  wrong({"\"t\"", "an array of texts"}, [&] { m.texts("t"); });
  wrong({"\"is\"", "an array of texts"}, [&] { m.texts("is"); });
  wrong({"\"i\"", "a u32"}, [&] { m.u32("i"); });
}

// Limits made honest files slow elsewhere (llama.cpp, PR 19856).
TEST(GgufMetadata, ALargeVocabularyIsReadAtOnce) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 262'144; ++i) tokens.push_back(fmt::format("token {}", i));
  const std::string file = GgufWriter()
                               .add("tokens", tokens)
                               .add("scores", std::vector<float>(tokens.size(), 0.5f))
                               .add("types", std::vector<std::int32_t>(tokens.size(), 1))
                               .file();
  const std::clock_t start = std::clock();
  const GgufMetadata metadata = parse_gguf(std::as_bytes(std::span(file)), "f").metadata;
  const auto read = metadata.texts("tokens");
  EXPECT_EQ(metadata.reals("scores")->size(), tokens.size());
  EXPECT_EQ(metadata.integers("types")->size(), tokens.size());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  RecordProperty("milliseconds", static_cast<int>(1000 * seconds));
  EXPECT_LT(seconds, 0.3);
  ASSERT_EQ(read->size(), tokens.size());
  EXPECT_EQ(read->back(), tokens.back());
}

}  // namespace
}  // namespace quantspec
