#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "base/expect_error.h"
#include "base/expect_linear_time.h"
#include "base/json.h"
#include "base/test_folder.h"

namespace quantspec {
namespace {

// A file: the length (that of the header unless another is given), the header, zeroed data.
std::string file_of(const std::string& header, std::size_t data_bytes,
                    std::optional<std::uint64_t> length = std::nullopt) {
  const std::uint64_t written = length.value_or(header.size());
  std::string file(8, '\0');
  std::memcpy(file.data(), &written, 8);
  return file + header + std::string(data_bytes, '\0');
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TensorEntries parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "f");
}

TEST(Safetensors, ReadsEntries) {
  const auto tensors = parse(file_of(
      R"({"__metadata__":{"format":"pt"},"b":)" + entry("F32", "[3]", "[12,24]") + R"(,"a":)" +
          entry("BF16", "[2,3]", "[0,12]") + R"(,"none":)" + entry("I8", "[0]", "[24,24]") + "}  ",
      24));
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.at("a").dtype, "BF16");
  EXPECT_EQ(tensors.at("a").shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(tensors.at("a").end - tensors.at("a").begin, 12u);
  EXPECT_EQ(tensors.at("b").begin, tensors.at("a").end);
}

struct BadFile {
  std::string name;
  std::vector<std::string> mentions;
  std::string file;
};

std::vector<BadFile> bad_files() {
  const auto one = [](const std::string& json) { return R"({"w":)" + json + "}"; };
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"v":)" + entry("F32", "[2]", a) + R"(,"w":)" + entry("F32", "[2]", b) + "}";
  };
  const std::string good = entry("F32", "[2]", "[0,8]");
  return {
      {"Empty", {"f:", "short"}, ""},
      {"SevenBytes", {"short"}, std::string(7, '\0')},
      {"TenGigabyteHeader", {"10000000000"}, file_of("{}", 0, 10'000'000'000u)},
      {"LengthOfAllOnes", {"18446744073709551615"}, file_of("{}", 0, ~std::uint64_t{0})},
      {"HeaderPastTheEnd", {"truncated"}, file_of("{}", 0, 3)},
      {"NoHeader", {"JSON"}, file_of("", 0)},
      {"BrokenJson", {"JSON"}, file_of(R"({"w":)", 8)},
      {"InvalidUtf8", {"JSON"}, file_of("{\"\xff\":1}", 8)},
      {"HeaderIsAList", {"object"}, file_of("[]", 0)},
      {"DeepNesting", {"nested"}, file_of(std::string(100000, '['), 0)},
      {"EntryIsANumber", {"\"w\"", "object"}, file_of(one("1"), 8)},
      {"NoDtype", {"\"w\"", "dtype"}, file_of(one(R"({"shape":[2],"data_offsets":[0,8]})"), 8)},
      {"NoShape", {"\"w\"", "shape"}, file_of(one(R"({"dtype":"F32","data_offsets":[0,8]})"), 8)},
      {"NoOffsets", {"\"w\"", "data_offsets"}, file_of(one(R"({"dtype":"F32","shape":[2]})"), 8)},
      {"NegativeDim", {"\"w\"", "shape"}, file_of(one(entry("F32", "[-2]", "[0,8]")), 8)},
      {"FractionalDim", {"\"w\"", "shape"}, file_of(one(entry("F32", "[2.0]", "[0,8]")), 8)},
      {"ManyDims",
       {"\"w\"", "shape"},
       file_of(one(entry("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]")), 8)},
      {"NegativeOffset", {"\"w\"", "data_offsets"}, file_of(one(entry("F32", "[2]", "[-8,0]")), 8)},
      {"ThreeOffsets", {"\"w\"", "data_offsets"}, file_of(one(entry("F32", "[2]", "[0,8,8]")), 8)},
      {"DecreasingOffsets", {"\"w\"", "[8, 0]"}, file_of(one(entry("F32", "[2]", "[8,0]")), 8)},
      {"OffsetsPastTheEnd", {"\"w\"", "ends at byte 8"}, file_of(one(good), 7)},
      {"HugeOffsets",
       {"\"w\"", "ends at byte"},
       file_of(one(entry("F32", "[2]", "[18446744073709551607,18446744073709551615]")), 8)},
      {"SizeNotThatOfShape", {"\"w\"", "12", "8"}, file_of(one(entry("F32", "[3]", "[0,8]")), 8)},
      {"ShapeOverflows",
       {"\"w\"", "too large"},
       file_of(one(entry("F32", "[4294967296,4294967296]", "[0,8]")), 8)},
      {"Overlap", {"\"w\"", "overlaps"}, file_of(two("[0,8]", "[4,12]"), 12)},
      {"SameBytes", {"\"w\"", "overlaps"}, file_of(two("[0,8]", "[0,8]"), 8)},
      {"Gap", {"\"w\"", "gap"}, file_of(two("[0,8]", "[12,20]"), 20)},
      {"TrailingBytes", {"4 bytes after"}, file_of(one(good), 12)},
      {"ListedTwice", {"\"w\"", "twice"}, file_of(R"({"w":)" + good + R"(,"w":)" + good + "}", 8)},
  };
}

TEST(Safetensors, RefusesBadFiles) {
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.name);
    expect_error(ErrorKind::kCorruptFile, bad.mentions, [&] { parse(bad.file); });
  }
}

// Reading was quadratic in the number of tensors: 40,000 took 12 to 26 s.
TEST(Safetensors, TimeIsLinearInTheNumberOfTensors) {
  const auto header_of = [](std::size_t tensors) {
    std::string header = "{";
    for (std::size_t i = 0; i < tensors; ++i) {
      header += fmt::format("{}\"model.layers.{}.mlp.experts.weight\":{}", i == 0 ? "" : ",", i,
                            entry("F32", "[1]", fmt::format("[{},{}]", 4 * i, 4 * i + 4)));
    }
    return header + "}";
  };
  std::string file;
  expect_linear_time(
      10'000, [&](std::size_t tensors) { file = file_of(header_of(tensors), 4 * tensors); },
      [&](std::size_t tensors) { EXPECT_EQ(parse(file).size(), tensors); });
  expect_error(ErrorKind::kCorruptFile, {"f:", "300000 tensors", "262144"},
               [&] { parse(file_of(header_of(300'000), 4 * 300'000)); });
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = file_of(R"({"w":)" + entry("F32", "[2]", "[0,8]") + "}", 8);
  EXPECT_EQ(parse(file).size(), 1u);
  for (std::size_t size = 0; size < file.size(); ++size) {
    expect_error(ErrorKind::kCorruptFile, {"f:"}, [&] { parse(file.substr(0, size)); });
  }
}

TEST(Safetensors, IndexRefusesWhatIsNotAFileOfTheFolder) {
  const auto refused = [](const Json& index, const std::string& mention) {
    SCOPED_TRACE(index.dump());
    expect_error(ErrorKind::kCorruptFile, {"i:", mention},
                 [&] { parse_safetensors_index(index, "i"); });
  };
  refused(Json::array(), "weight_map");
  refused(Json::object(), "weight_map");
  refused({{"weight_map", 1}}, "weight_map");
  refused({{"weight_map", {{"w", 1}}}}, "\"w\"");
  for (const char* file : {"", ".", "..", "../x.safetensors", "/etc/passwd", "a/b", "..\\x"}) {
    refused({{"weight_map", {{"w", file}}}}, "plain name");
  }
  refused({{"weight_map", {{"w", std::string("a\0b", 3)}}}}, "plain name");
}

class CheckpointTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) const { own_.write(name, bytes); }
  void refused(ErrorKind kind, const std::vector<std::string>& mentions) const {
    expect_error(kind, mentions, [&] { Checkpoint{folder_}; });
  }

  const TestFolder own_;
  const std::filesystem::path& folder_ = own_.path();
};

const std::string kMatrix =
    file_of(R"({"w":)" + entry("F32", "[2,3]", "[0,24]") + R"(,"n":)" +
                entry("BF16", "[3]", "[24,30]") + R"(,"i":)" + entry("I64", "[1]", "[30,38]") +
                R"(,"x":)" + entry("F5\\n", "[1]", "[38,40]") + "}",
            40);

TEST_F(CheckpointTest, GivesCheckedTensors) {
  write("model.safetensors", kMatrix);
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.bytes(), kMatrix.size());
  EXPECT_TRUE(checkpoint.has("w"));
  EXPECT_FALSE(checkpoint.has("v"));
  const TensorView matrix = checkpoint.tensor("w", 2, 3);
  EXPECT_EQ(matrix.dtype, DType::kF32);
  EXPECT_EQ(matrix.rows, 2);
  EXPECT_EQ(matrix.cols, 3);
  const TensorView vector = checkpoint.tensor("n", 1, 3);
  EXPECT_EQ(vector.dtype, DType::kBF16);
  EXPECT_EQ(static_cast<const std::byte*>(vector.data) - static_cast<const std::byte*>(matrix.data),
            24);
  const auto corrupt = [&](const char* name, int rows, int cols,
                           const std::vector<std::string>& mentions) {
    expect_error(ErrorKind::kCorruptFile, mentions, [&] { checkpoint.tensor(name, rows, cols); });
  };
  corrupt("v", 2, 3, {folder_.string(), "\"v\"", "missing"});
  corrupt("w", 3, 2, {"model.safetensors", "\"w\"", "[2, 3]", "[3, 2]"});
  corrupt("w", 1, 6, {"\"w\"", "[2, 3]", "[6]"});
  corrupt("n", 3, 1, {"\"n\"", "[3]", "[3, 1]"});
  expect_error(ErrorKind::kUnsupportedModel, {"\"i\"", "I64", "BF16, F16, F32"},
               [&] { checkpoint.tensor("i", 1, 1); });
  expect_error(ErrorKind::kUnsupportedModel, {"\"x\"", "F5"},
               [&] { checkpoint.tensor("x", 1, 1); });
}

TEST_F(CheckpointTest, TensorsSurviveAMove) {
  write("model.safetensors", kMatrix);
  Checkpoint checkpoint(folder_);
  const void* data = checkpoint.tensor("w", 2, 3).data;
  const Checkpoint moved = std::move(checkpoint);
  EXPECT_EQ(moved.tensor("w", 2, 3).data, data);
}

TEST_F(CheckpointTest, ReadsShards) {
  const auto shard = [](const std::string& name) {
    return file_of("{\"" + name + "\":" + entry("F16", "[4]", "[0,8]") + "}", 8);
  };
  write("one.safetensors", shard("a"));
  write("two.safetensors", shard("b"));
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.tensor("a", 1, 4).dtype, DType::kF16);
  EXPECT_EQ(checkpoint.tensor("b", 1, 4).cols, 4);

  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  refused(ErrorKind::kCorruptFile, {"index.json", "\"b\"", "one.safetensors"});
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})");
  refused(ErrorKind::kCorruptFile, {"index.json", "\"a\"", "two.safetensors"});
  write("model.safetensors.index.json", R"({"weight_map":{"a":"three.safetensors"}})");
  refused(ErrorKind::kCorruptFile, {"index.json", "\"a\"", "three.safetensors", "not exist"});
  write("model.safetensors.index.json", "{");
  refused(ErrorKind::kCorruptFile, {"index.json"});
}

TEST_F(CheckpointTest, ATensorInTwoShardsIsRefused) {
  const auto shard = [](const std::string& header) { return file_of("{" + header + "}", 16); };
  const std::string first = entry("F16", "[4]", "[0,8]"), second = entry("F16", "[4]", "[8,16]");
  write("one.safetensors", shard("\"a\":" + first + ",\"both\":" + second));
  write("two.safetensors", shard("\"b\":" + first + ",\"both\":" + second));
  write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors",)"
                                        R"("b":"two.safetensors","both":"two.safetensors"}})");
  refused(
      ErrorKind::kCorruptFile,
      {"two.safetensors: tensor \"both\" is in one.safetensors too; a tensor must be in one file"});
}

TEST_F(CheckpointTest, CountsTheFilesThatItReadsAndNoOthers) {
  write("model.safetensors", kMatrix);
  write("consolidated.safetensors", kMatrix);
  EXPECT_EQ(Checkpoint(folder_).bytes(), kMatrix.size());
}

TEST_F(CheckpointTest, SaysWhenAFileWasWrittenTo) {
  write("model.safetensors", kMatrix);
  const Checkpoint checkpoint(folder_);
  checkpoint.require_unchanged();
  write("model.safetensors", kMatrix + "x");
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "was written to"},
               [&] { checkpoint.require_unchanged(); });
}

TEST_F(CheckpointTest, SaysWhatAFolderLacks) {
  refused(ErrorKind::kInvalidRequest,
          {folder_.string(), "model.safetensors", "model.safetensors.index.json"});
  write("pytorch_model.bin", "x");
  refused(ErrorKind::kInvalidRequest, {"pytorch_model.bin", "safetensors"});
  expect_error(ErrorKind::kInvalidRequest, {"/nonexistent"}, [] { Checkpoint{"/nonexistent"}; });
}

TEST(Checkpoint, ReadsTheGoldenShards) {
  const Checkpoint checkpoint(std::filesystem::path(QUANTSPEC_TESTDATA) /
                              "models/llama-yarn-sharded");
  EXPECT_TRUE(checkpoint.has("model.embed_tokens.weight"));
  EXPECT_TRUE(checkpoint.has("model.norm.weight"));
}

}  // namespace
}  // namespace quantspec
