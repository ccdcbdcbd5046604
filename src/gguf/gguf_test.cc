#include "gguf/gguf.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/expect_error.h"
#include "base/expect_linear_time.h"
#include "base/test_folder.h"
#include "gguf/test_support.h"

namespace quantspec {
namespace {

constexpr std::int64_t kMost64 = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMostU64 = std::numeric_limits<std::uint64_t>::max();

GgufPart parse(const std::string& file) { return parse_gguf(std::as_bytes(std::span(file)), "f"); }

// Two tensors and a few keys.
GgufWriter good() {
  GgufWriter writer;
  writer.add("general.architecture", "llama").add("llama.block_count", 2u);
  writer.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "bc"});
  writer.tensor("w", GgmlType::kQ8_0, {64, 2}, std::string(4 * 34, 'w'));
  writer.tensor("n", GgmlType::kF32, {3}, std::string(12, 'n'));
  return writer;
}

GgufWriter tensor_at(const std::vector<std::int64_t>& shape, std::uint64_t offset,
                     GgmlType type = GgmlType::kF32) {
  return GgufWriter().tensor_at("w", type, shape, offset).data(std::string(64, 'x'));
}

TEST(GgufFile, ReadsTensors) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufWriter writer = good();
    writer.version = version;
    const std::string file = writer.file();
    const GgufPart part = parse(file);
    ASSERT_EQ(part.tensors.size(), 2u);
    const GgufTensor& w = part.tensors.at("w");
    EXPECT_EQ(w.type, GgmlType::kQ8_0);
    EXPECT_EQ(w.shape, (std::vector<std::uint64_t>{64, 2}));
    EXPECT_EQ(w.bytes.size(), 136u);
    EXPECT_EQ(w.bytes.front(), std::byte{'w'});
    EXPECT_EQ(w.bytes.back(), std::byte{'w'});
    EXPECT_EQ(part.tensors.at("n").bytes.front(), std::byte{'n'});
    EXPECT_EQ(part.tensors.at("n").bytes.data() - w.bytes.data(), 160);
    EXPECT_EQ(part.metadata.integer("llama.block_count"), 2);
  }
}

TEST(GgufFile, TensorsLieInAnyOrderWithGapsBetweenThem) {
  GgufWriter writer;
  writer.alignment = 8;
  writer.add("general.alignment", 8u);
  writer.tensor_at("a", GgmlType::kF32, {2}, 32).tensor_at("b", GgmlType::kF32, {2}, 8);
  const std::string file = writer.data("........bbbbbbbb................aaaaaaaa").file();
  const GgufPart part = parse(file);
  EXPECT_EQ(part.tensors.at("a").bytes[0], std::byte{'a'});
  EXPECT_EQ(part.tensors.at("b").bytes[7], std::byte{'b'});
}

TEST(GgufFile, AnUnsupportedTypeIsReadPast) {
  GgufWriter writer;
  writer.tensor("w", static_cast<GgmlType>(16), {256}, std::string(66, 'x'));
  const std::string file = writer.file();
  EXPECT_EQ(parse(file).tensors.at("w").bytes.size(), 66u);
}

struct BadFile {
  std::string name;
  std::vector<std::string> mentions;
  GgufWriter writer;
  ErrorKind kind = ErrorKind::kCorruptFile;
};

// Heads, counts and metadata: the rows of the attack table that are about them.
std::vector<BadFile> bad_heads() {
  std::vector<BadFile> bad;
  const auto add = [&](const char* name, std::vector<std::string> mentions, auto falsify,
                       ErrorKind kind = ErrorKind::kCorruptFile) {
    GgufWriter writer = good();
    falsify(writer);
    bad.push_back({name, std::move(mentions), std::move(writer), kind});
  };
  const auto version = [](std::uint32_t version) {
    return [=](GgufWriter& writer) { writer.version = version; };
  };
  using Writer = GgufWriter;
  constexpr auto kUnsupported = ErrorKind::kUnsupportedModel;
  add("Magic", {"no GGUF file", "\"GGML\""}, [](Writer& w) { w.magic = "GGML"; });
  add("Version1", {"version 1", "2 and 3"}, version(1), kUnsupported);
  add("Version4", {"version 4", "2 and 3"}, version(4), kUnsupported);
  add("BigEndian", {"big-endian", "little-endian"}, version(0x03000000), kUnsupported);
  add("Version0", {"version 0"}, version(0), kUnsupported);
  // Talos 2024: counts and lengths that were multiplied before they were looked at.
  add("KeyCount", {"18446744073709551615 metadata keys"}, [](Writer& w) { w.num_keys = kMostU64; });
  add("KeyCountWraps", {"metadata keys"}, [](Writer& w) { w.num_keys = kMostU64 / 64 + 2; });
  add("TensorCount", {"18446744073709551615 tensors"}, [](Writer& w) { w.num_tensors = kMostU64; });
  add("TensorCountWraps", {"tensors"}, [](Writer& w) { w.num_tensors = kMostU64 / 360 + 1; });
  add("MoreTensorsThanThereAre", {"9 tensors", "bytes are left"},
      [](Writer& w) { w.num_tensors = 9; });
  add("LessKeysThanThereAre", {"f:"}, [](Writer& w) { w.num_keys = 2; });
  add("ArrayCount", {"\"k\"", "18446744073709551615 elements"},
      [](Writer& w) { w.add_array("k", GgufValueType::kU64, kMostU64, ""); });
  add("ArrayCountWraps", {"\"k\"", "elements"},
      [](Writer& w) { w.add_array("k", GgufValueType::kU64, kMostU64 / 8 + 2, "12345678"); });
  add("ArrayOfTextsCount", {"\"k\"", "elements"},
      [](Writer& w) { w.add_array("k", GgufValueType::kText, 1 << 20, "12345678"); });
  add("TextLength", {"\"k\"", "18446744073709551615 bytes"}, [](Writer& w) {
    w.add_raw("k", GgufValueType::kText, bytes_of(std::vector{kMostU64}) + "x");
  });
  add("TextLengthPastTheEnd", {"\"k\"", "truncated", "1000000"}, [](Writer& w) {
    w.add_raw("k", GgufValueType::kText, bytes_of(std::vector<std::uint64_t>{1'000'000}) + "x");
  });
  // CVE-2025-49847: a token whose length does not fit what counts it.
  add("TokenLength", {"\"k\"", "65537", "65536"},
      [](Writer& w) { w.add("k", std::vector<std::string>{std::string(65537, 'a')}); });
  add("KeyLength", {"key", "65536", "65535"}, [](Writer& w) { w.add(std::string(65536, 'k'), 1); });
  add("NestedArray", {"\"k\"", "type 9"},
      [](Writer& w) { w.add_array("k", GgufValueType::kArray, 1, std::string(12, '\0')); });
  add("ArrayOfUnknownType", {"\"k\"", "type 13"}, [](Writer& w) {
    w.add_array("k", static_cast<GgufValueType>(13), 1, std::string(12, '\0'));
  });
  add("UnknownType", {"\"k\"", "type 4294967295"}, [](Writer& w) {
    w.add_raw("k", static_cast<GgufValueType>(0xffffffff), std::string(8, '\0'));
  });
  add("Bool", {"\"k\"", "bool of value 2"},
      [](Writer& w) { w.add_raw("k", GgufValueType::kBool, "\2"); });
  add("KeyTwice", {"\"llama.block_count\"", "twice"},
      [](Writer& w) { w.add("llama.block_count", 3u); });
  add("KeyOfControlCharacters", {R"("\u001b[2J\n")", "twice"},
      [](Writer& w) { w.add("\x1b[2J\n", 3u).add("\x1b[2J\n", 3u); });
  // PRs 24997 and 26318: alignments with which padding wraps.
  for (const std::uint32_t alignment : {0u, 1u, 4u, 33u, 131072u, 0x80000000u, 0xffffffffu}) {
    add("Alignment", {"general.alignment", std::to_string(alignment), "power of two"},
        [=](Writer& w) { w.add("general.alignment", alignment); });
  }
  add("AlignmentType", {"general.alignment", "u64", "must be a u32"},
      [](Writer& w) { w.add("general.alignment", std::uint64_t{32}); });
  add("AlignmentArray", {"general.alignment", "array", "must be a u32"},
      [](Writer& w) { w.add("general.alignment", std::vector{32u}); });
  return bad;
}

std::vector<BadFile> bad_tensors() {
  constexpr auto kUnsupported = ErrorKind::kUnsupportedModel;
  const auto two = [](const char* a, std::uint64_t a_at, const char* b, std::uint64_t b_at) {
    return GgufWriter()
        .tensor_at(a, GgmlType::kF32, {16}, a_at)
        .tensor_at(b, GgmlType::kF32, {16}, b_at)
        .data(std::string(256, 'x'));
  };
  const auto typed = [](std::uint32_t type) { return static_cast<GgmlType>(type); };
  return {
      {"NoDimensions", {"\"w\"", "0 dimensions"}, tensor_at({}, 0)},
      {"FiveDimensions", {"\"w\"", "5 dimensions", "1 to 4"}, tensor_at({1, 1, 1, 1, 1}, 0)},
      {"NoWeights", {"\"w\"", "dimension of 0"}, tensor_at({0}, 0)},
      {"NegativeDimension", {"\"w\"", "dimension of -8"}, tensor_at({-8, -1}, 0)},
      {"HugeDimension", {"\"w\"", "dimension of 9223372036854775807"}, tensor_at({kMost64}, 0)},
      // CVE-2026-33298: sizes whose product wraps.
      {"ProductWraps",
       {"\"w\"", "most weights"},
       tensor_at({1 << 30, 1 << 30, 1 << 30, 1 << 30}, 0)},
      {"ProductTooLarge", {"\"w\"", "most weights"}, tensor_at({1 << 30, 1 << 30, 1}, 0)},
      {"HalfABlock", {"\"w\"", "[48]", "32 Q4_0"}, tensor_at({48}, 0, GgmlType::kQ4_0)},
      {"UnknownType", {"\"w\"", "type 99", "Q4_K"}, tensor_at({32}, 0, typed(99)), kUnsupported},
      {"RemovedType", {"\"w\"", "type 4,"}, tensor_at({32}, 0, typed(4)), kUnsupported},
      {"Misaligned", {"\"w\"", "begins at 4", "alignment 32"}, tensor_at({1}, 4)},
      // CVE-2026-7482, CVE-2025-53630: ranges beyond the file, and sums that wrap into it.
      {"PastTheEnd", {"\"w\"", "68 bytes at 0 of 64", "not whole"}, tensor_at({17}, 0)},
      {"BeginsPastTheEnd", {"\"w\"", "not whole"}, tensor_at({1}, 96)},
      {"OffsetWraps", {"\"w\"", "not whole"}, tensor_at({16}, kMostU64 - 31)},
      {"NoData", {"\"w\"", "0 bytes of data"}, GgufWriter().tensor_at("w", GgmlType::kF32, {1}, 0)},
      {"Overlap", {"\"v\"", "overlaps"}, two("w", 0, "v", 32)},
      {"SameBytes", {"overlaps"}, two("w", 64, "v", 64)},
      {"NamedTwice", {"\"w\"", "twice"}, two("w", 0, "w", 64)},
      {"LongName", {"name of a tensor", "65", "64"}, two(std::string(65, 'n').c_str(), 0, "w", 64)},
  };
}

TEST(GgufFile, RefusesBadHeads) {
  for (const BadFile& bad : bad_heads()) {
    SCOPED_TRACE(bad.name);
    expect_error(bad.kind, bad.mentions, [&] { parse(bad.writer.file()); });
  }
}

TEST(GgufFile, RefusesBadTensors) {
  for (const BadFile& bad : bad_tensors()) {
    SCOPED_TRACE(bad.name);
    expect_error(bad.kind, bad.mentions, [&] { parse(bad.writer.file()); });
  }
}

TEST(GgufFile, RefusesEveryTruncation) {
  const std::string file = good().file();
  EXPECT_EQ(parse(file).tensors.size(), 2u);
  for (std::size_t size = 0; size < file.size(); ++size) {
    expect_error(ErrorKind::kCorruptFile, {"f:"}, [&] { parse(file.substr(0, size)); });
  }
}

TEST(GgufFile, TimeIsLinearInTheNumberOfTensors) {
  std::string file;
  expect_linear_time(
      10'000,
      [&](std::size_t tensors) {
        GgufWriter writer;
        for (std::size_t i = 0; i < tensors; ++i) {
          writer.tensor(fmt::format("blk.{}.ffn_gate.weight", i), GgmlType::kF32, {1}, "1234");
        }
        file = writer.file();
      },
      [&](std::size_t tensors) { EXPECT_EQ(parse(file).tensors.size(), tensors); });
}

class GgufTest : public testing::Test {
 protected:
  static std::string part_name(int part, int count) {
    return fmt::format("m-{:05}-of-{:05}.gguf", part, count);
  }
  // A part with one tensor, called `tensor`.
  static GgufWriter part(int no, int count, const char* tensor, int tensors) {
    GgufWriter writer;
    writer.add("split.no", static_cast<std::uint16_t>(no));
    writer.add("split.count", static_cast<std::uint16_t>(count));
    writer.add("split.tensors.count", tensors);
    return writer.tensor(tensor, GgmlType::kF32, {1}, std::string(4, tensor[0]));
  }
  void write(int number, int count, const GgufWriter& writer) const {
    folder_.write(part_name(number, count), writer.file());
  }
  void refused(ErrorKind kind, const std::vector<std::string>& mentions, int number = 1) const {
    expect_error(kind, mentions, [&] { Gguf{folder_ / part_name(number, 3)}; });
  }
  void write_three() const {
    write(1, 3, part(0, 3, "a", 3).add("k", "text"));
    write(2, 3, part(1, 3, "b", 3));
    write(3, 3, part(2, 3, "c", 3));
  }

  const TestFolder folder_;
};

TEST_F(GgufTest, TextsAndTensorsSurviveAMove) {
  Gguf gguf(folder_.write("m.gguf", good().file()));
  const void* data = gguf.tensor("w").bytes.data();
  const auto text = gguf.metadata().text("general.architecture");
  const Gguf moved = std::move(gguf);
  EXPECT_EQ(moved.tensor("w").bytes.data(), data);
  EXPECT_EQ(text, "llama");
  EXPECT_EQ(moved.bytes(), good().file().size());
  EXPECT_EQ(moved.names(), (std::vector<std::string>{"n", "w"}));
  EXPECT_NE(moved.where("n").find("m.gguf: tensor \"n\""), std::string::npos);
  expect_error(ErrorKind::kCorruptFile, {"m.gguf", "\"v\"", "missing"}, [&] { moved.tensor("v"); });
}

TEST_F(GgufTest, ReadsAllParts) {
  write_three();
  const Gguf gguf(folder_ / part_name(1, 3));
  EXPECT_EQ(gguf.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(gguf.tensor("c").bytes[0], std::byte{'c'});
  EXPECT_EQ(gguf.metadata().text("k"), "text");
  EXPECT_NE(gguf.where("b").find(part_name(2, 3)), std::string::npos);
  const std::uint64_t hash = gguf.hash();
  write(3, 3, part(2, 3, "d", 3));
  EXPECT_NE(Gguf(folder_ / part_name(1, 3)).hash(), hash);
}

TEST_F(GgufTest, TheFirstPartMayHaveNoTensors) {
  write(1, 3, GgufWriter().add("split.no", 0).add("split.count", 3).add("split.tensors.count", 2));
  write(2, 3, part(1, 3, "b", 2));
  write(3, 3, part(2, 3, "c", 2));
  EXPECT_EQ(Gguf(folder_ / part_name(1, 3)).names().size(), 2u);
}

TEST_F(GgufTest, RefusesPartsThatDoNotBelongTogether) {
  write_three();
  refused(ErrorKind::kInvalidRequest, {"part 2 of 3", "give the first one", part_name(1, 3)}, 2);
  write(2, 3, part(1, 4, "b", 3));
  refused(ErrorKind::kCorruptFile, {part_name(2, 3), "split.count", "is 4", "must be 3"});
  write(2, 3, part(2, 3, "b", 3));
  refused(ErrorKind::kCorruptFile, {part_name(2, 3), "split.no", "is 2", "must be 1"});
  write(2, 3, good());
  refused(ErrorKind::kCorruptFile, {part_name(2, 3), "split.no", "is missing"});
  write(2, 3, part(1, 3, "a", 3));
  refused(ErrorKind::kCorruptFile, {part_name(2, 3), "\"a\"", part_name(1, 3)});
  write(2, 3, part(1, 3, "b", 3).tensor("e", GgmlType::kF32, {1}, "eeee"));
  refused(ErrorKind::kCorruptFile, {part_name(1, 3), "split.tensors.count", "is 3", "4 tensors"});
  std::filesystem::remove(folder_ / part_name(2, 3));
  refused(ErrorKind::kInvalidRequest, {part_name(1, 3), part_name(2, 3), "does not exist"});
}

TEST_F(GgufTest, RefusesHeadsOfPartsThatMakeNoSense) {
  write(1, 3, part(3, 3, "a", 3));
  refused(ErrorKind::kCorruptFile, {"split.no", "is 3", "split.count"});
  write(1, 3, part(0, 60000, "a", 3));
  refused(ErrorKind::kCorruptFile, {"60000", "1024"});
  const auto other = folder_.write("other.gguf", part(0, 3, "a", 3).file());
  expect_error(ErrorKind::kInvalidRequest, {"other.gguf", "3 parts", "-00001-of-00003.gguf"},
               [&] { Gguf{other}; });
}

TEST_F(GgufTest, SaysWhatIsNotThere) {
  expect_error(ErrorKind::kInvalidRequest, {"/nonexistent"}, [] { Gguf{"/nonexistent"}; });
  expect_error(ErrorKind::kInvalidRequest, {"folder"}, [&] { Gguf{folder_.path()}; });
  expect_error(ErrorKind::kCorruptFile, {"truncated"}, [&] { Gguf{folder_.write("e", "")}; });
}

TEST_F(GgufTest, RefusesTheGoldenFileAtEvery97thByte) {
  const auto golden = std::filesystem::path(QUANTSPEC_TESTDATA) / "blocks.gguf";
  const MappedFile whole(golden);
  const auto bytes = whole.bytes();
  EXPECT_NO_THROW(parse_gguf(bytes, "f"));
  // After its last tensor there is nothing but padding.
  for (std::size_t size = 0; size + 64 < bytes.size(); size += 97) {
    expect_error(ErrorKind::kCorruptFile, {"f:"}, [&] { parse_gguf(bytes.first(size), "f"); });
  }
}

TEST_F(GgufTest, SaysWhenAFileWasWrittenTo) {
  const auto path = folder_.write("m.gguf", good().file());
  const Gguf gguf(path);
  gguf.require_unchanged();
  folder_.write("m.gguf", good().file() + "x");
  expect_error(ErrorKind::kCorruptFile, {"m.gguf", "was written to"},
               [&] { gguf.require_unchanged(); });
}

// Texts and tensors read as zeros then, also where their lengths lie in the file.
TEST_F(GgufTest, AFileThatBecomesShorterIsReported) {
  MappedFile::survive_losses();
  GgufWriter writer = good();
  writer.add("texts", std::vector<std::string>(4000, "text"));
  const Gguf gguf(folder_.write("m.gguf", writer.file()));
  gguf.require_whole();
  std::filesystem::resize_file(gguf.path(), 100);
  EXPECT_EQ(gguf.metadata().texts("texts").value().size(), 4000u);
  EXPECT_EQ(gguf.tensor("w").bytes[9], std::byte{0});
  expect_error(ErrorKind::kCorruptFile, {"m.gguf", "became shorter"},
               [&] { gguf.require_whole(); });
}

}  // namespace
}  // namespace quantspec
