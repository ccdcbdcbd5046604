#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(QUANTSPEC_TESTDATA) / "tokenizer";
const fs::path kBundled = fs::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m";

bool is_valid_utf8(const std::string& text) { return repair_utf8(text) == text; }

// Pushes the ids one by one; every piece must be valid UTF-8.
std::string stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(piece)) << piece;
    text += piece;
  }
  const std::string rest = decoder.flush();
  EXPECT_TRUE(is_valid_utf8(rest)) << rest;
  return text + rest;
}

// A tokenizer and what its own library made of the texts of tools/make_tokenizer_tests.py.
struct Golden {
  std::string name;  // a folder of testdata
  fs::path model;    // where the tokenizer is
};

class GoldenTest : public testing::TestWithParam<Golden> {
 protected:
  const std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(GetParam().model);
  const Json cases_ = parse_json_file(kData / GetParam().name / "cases.json");
};

TEST_P(GoldenTest, TextsGiveTheIdsOfTheOriginalLibrary) {
  ASSERT_GE(cases_["texts"].size(), 80u);
  for (const Json& row : cases_["texts"]) {
    const auto text = row["text"].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, false), row["ids"].get<std::vector<TokenId>>()) << row;
    EXPECT_EQ(tokenizer_->encode(text, true), row["ids_special"].get<std::vector<TokenId>>())
        << row;
  }
}

TEST_P(GoldenTest, IdsGiveTheTextOfTheOriginalLibrary) {
  ASSERT_GE(cases_["id_lists"].size(), 60u);
  for (const char* part : {"texts", "id_lists"}) {
    for (const Json& row : cases_[part]) {
      const auto ids = row["ids"].get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer_->decode(ids), row["decoded"].get<std::string>()) << row;
    }
  }
}

TEST_P(GoldenTest, StreamedTextIsValidAtEveryTokenAndEqualsTheWhole) {
  for (const char* part : {"texts", "id_lists"}) {
    for (const Json& row : cases_[part]) {
      const auto ids = row["ids"].get<std::vector<TokenId>>();
      EXPECT_EQ(stream(*tokenizer_, ids), row["decoded"].get<std::string>()) << row;
    }
  }
}

TEST_P(GoldenTest, EveryTokenAloneIsBelowTheVocabularySizeAndDecodes) {
  for (TokenId id = -1; id <= tokenizer_->vocab_size(); ++id) {
    const std::vector<TokenId> ids = {id};
    EXPECT_TRUE(is_valid_utf8(tokenizer_->decode(ids)));
    EXPECT_TRUE(!tokenizer_->is_special(id) || tokenizer_->token_bytes(id).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, GoldenTest,
    testing::Values(Golden{"llama3", kData / "llama3"}, Golden{"qwen2", kData / "qwen2"},
                    Golden{"gpt2", kData / "gpt2"}, Golden{"prepend", kData / "prepend"},
                    Golden{"first", kData / "first"}, Golden{"never", kData / "never"},
                    Golden{"strings", kData / "strings"}, Golden{"unknown", kData / "unknown"},
                    Golden{"pg-24m", kBundled}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '-');
      return name;
    });

// NFC sorts the marks after a letter; one by one, that would take minutes for these.
TEST(Normalization, ManyMarksOnOneLetterTakeLittleTime) {
  std::string above;
  std::string below;
  for (int i = 0; i < 100000; ++i) {
    above += "\u0301";
    below += "\u0323";
  }
  const auto tokenizer = load_tokenizer(kData / "qwen2");
  EXPECT_TRUE(tokenizer->decode(tokenizer->encode("b" + above + below, false)) ==
              "\u1E05" + below.substr(2) + above);  // U+1E05 is b with a dot below
}

TEST(LoadTokenizer, AFolderWithoutATokenizerIsAnInvalidRequestThatNamesBothFiles) {
  try {
    load_tokenizer(kData);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    const std::string message = error.what();
    EXPECT_NE(message.find("tokenizer.model"), std::string::npos) << message;
    EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
  }
}

// Files of one test, in a folder that goes with it.
class FolderTest : public testing::Test {
 protected:
  FolderTest()
      : folder_(fs::path(testing::TempDir()) /
                ("quantspec_" +
                 std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~FolderTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  const fs::path folder_;
};

TEST_F(FolderTest, TheModelFileWinsOverTheJsonFile) {
  write("tokenizer.json", read_file(kData / "llama3" / "tokenizer.json"));
  const int vocab_size = load_tokenizer(folder_)->vocab_size();
  EXPECT_LT(vocab_size, 8192);
  write("tokenizer.model", read_file(kBundled / "tokenizer.model"));
  EXPECT_EQ(load_tokenizer(folder_)->vocab_size(), 8192);
}

TEST_F(FolderTest, BothConfigFilesAreRead) {
  write("tokenizer.model", read_file(kBundled / "tokenizer.model"));
  write("tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": null,
      "bos_token": {"content": "<s>"}, "eos_token": "<end>",
      "added_tokens_decoder": {"8192": {"content": "<end>", "special": true}}})");
  write("added_tokens.json", R"({"<end>": 8192, "<more>": 8193})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->encode("<end><more>", true), (std::vector<TokenId>{8192, 8193}));
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 8192);
  EXPECT_TRUE(tokenizer->is_special(8192));
  EXPECT_EQ(tokenizer->token_bytes(8193), "<more>");
}

TEST_F(FolderTest, ABrokenConfigIsCorruptAndNamed) {
  write("tokenizer.model", read_file(kBundled / "tokenizer.model"));
  for (const char* text :
       {"[]", "{", R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"99999999999": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"-5": {"content": "a"}}})", R"({"bos_token": 3})"}) {
    write("tokenizer_config.json", text);
    try {
      load_tokenizer(folder_);
      FAIL() << "loaded: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile) << error.what();
      EXPECT_NE(std::string(error.what()).find("tokenizer_config.json"), std::string::npos);
    }
  }
}

// To look for each token among those before it took minutes.
TEST_F(FolderTest, TimeIsLinearInTheTokensOfTheConfig) {
  constexpr int kMany = 100'000;
  Json table, file;
  std::string text;
  for (int i = 0; i < kMany; ++i) {
    const std::string content = fmt::format("<|token {}|>", i);
    file[content] = 8192 + i;
    if (i % 2 == 0) table[std::to_string(8192 + i)] = {{"content", content}, {"special", true}};
    text += content;
  }
  write("tokenizer.model", read_file(kBundled / "tokenizer.model"));
  write("tokenizer_config.json", Json{{"added_tokens_decoder", table}}.dump());
  write("added_tokens.json", file.dump());
  const Stopwatch clock;
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->encode(text, false).size(), std::size_t{kMany});
  EXPECT_TRUE(tokenizer->is_special(8192));
  EXPECT_FALSE(tokenizer->is_special(8193));
  EXPECT_LT(clock.seconds(), 15);

  file[std::string(1 << 24, 'x')] = 8192;
  write("added_tokens.json", file.dump());
  expect_error(ErrorKind::kUnsupportedModel, {"added_tokens.json", "supported: 16777216"},
               [&] { load_tokenizer(folder_); });
}

TEST_F(FolderTest, HugeFilesAreNotRead) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    write(name, "");
    fs::resize_file(folder_ / name, std::uintmax_t{1} << 32);  // without taking room on the disk
    expect_error(ErrorKind::kCorruptFile, {name, "larger than"}, [&] { load_tokenizer(folder_); });
  }
}

}  // namespace
}  // namespace quantspec
