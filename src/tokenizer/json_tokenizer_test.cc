#include "tokenizer/json_tokenizer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tokenizer/small_tokenizer.h"

namespace quantspec {
namespace {

using Ids = std::vector<TokenId>;

TEST(JsonTokenizer, MergesAndSurroundsAsTheFileSays) {
  const auto tokenizer = make(small_file());
  EXPECT_EQ(tokenizer->encode("abbab<end> a\xC3\xA9", false), (Ids{3, 2, 7, 4, 0, 5, 6}));
  EXPECT_EQ(tokenizer->encode("ab", true), (Ids{7, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{7, 3, 4, 0, 5, 6}), "abb a\xC3\xA9");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_TRUE(tokenizer->is_special(7));
  EXPECT_FALSE(tokenizer->is_special(3));
  EXPECT_FALSE(tokenizer->is_special(8));
}

TEST(JsonTokenizer, BosAndEosComeFromTheConfig) {
  EXPECT_EQ(make(small_file())->eos(), std::nullopt);
  TokenizerConfig config;
  config.bos = "a";
  config.eos = "<end>";
  EXPECT_EQ(make(small_file(), config)->bos(), 0);
  EXPECT_EQ(make(small_file(), config)->eos(), 7);
}

TEST(JsonTokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  Json file = small_file();
  file["model"]["vocab"]["\u00ef"] = 8;  // the three bytes of U+FFFD
  file["model"]["vocab"]["\u00bf"] = 9;
  file["model"]["vocab"]["\u00bd"] = 10;
  EXPECT_EQ(make(file)->encode("a\xFF\xE2\x82", false), (Ids{0, 8, 9, 10, 8, 9, 10}));
}

TEST(JsonTokenizer, IdsWithoutATokenAddNothing) {
  EXPECT_EQ(make(small_file())->decode(Ids{-1, 0, 8, 1000000}), "a");
}

// One change to the small file, and what it is refused with.
struct Refusal {
  const char* pointer;  // JSON pointer of the value to change; "-" at the end appends
  const char* value;    // JSON
  ErrorKind kind;
  const char* message;  // part of it
};

class RefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, NamesTheFileTheKeyAndTheReasonInOneLine) {
  const Refusal& refusal = GetParam();
  Json file = small_file();
  file[Json::json_pointer(refusal.pointer)] = Json::parse(refusal.value);
  try {
    make(file);
    FAIL() << "taken: " << refusal.pointer << " = " << refusal.value;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), refusal.kind) << message;
    EXPECT_TRUE(message.starts_with("dir/tokenizer.json: ")) << message;
    EXPECT_NE(message.find(refusal.message), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

constexpr ErrorKind kCorrupt = ErrorKind::kCorruptFile;
constexpr ErrorKind kUnsupported = ErrorKind::kUnsupportedModel;

INSTANTIATE_TEST_SUITE_P(
    Corrupt, RefusalTest,
    testing::Values(
        Refusal{"/model", "null", kCorrupt, "model is not an object"},
        Refusal{"/model/vocab", "[]", kCorrupt, "model.vocab is not an object"},
        Refusal{"/model/vocab/a", "-1", kCorrupt, "\"a\" an id that is not an integer from 0"},
        Refusal{"/model/vocab/a", "2147483648", kCorrupt, "\"a\" an id"},
        Refusal{"/model/vocab/a", "18446744073709551615", kCorrupt, "\"a\" an id"},
        Refusal{"/model/vocab/a", "1048576", kCorrupt, "\"a\" an id"},
        Refusal{"/model/vocab/a", "1.5", kCorrupt, "\"a\" an id"},
        Refusal{"/model/vocab/a", "1", kCorrupt, "one id"},
        Refusal{"/model/merges", "{}", kCorrupt, "model.merges is not an array"},
        Refusal{"/model/merges/0", "\"a\"", kCorrupt, "[0] is not two tokens"},
        Refusal{"/model/merges/0", "\"a b b\"", kCorrupt, "[0] is not two tokens"},
        Refusal{"/model/merges/1", "[\"a\"]", kCorrupt, "[1] is neither"},
        Refusal{"/model/merges/1", "[\"a\", 1]", kCorrupt, "[1] is neither"},
        Refusal{"/model/merges/1", "\"b a\"", kCorrupt, "[1] names \"ba\", which is no token"},
        Refusal{"/model/unk_token", "\"<unk>\"", kCorrupt, "unk_token is not in the vocabulary"},
        Refusal{"/model/byte_fallback", "true", kCorrupt, "byte tokens"},
        Refusal{"/model/byte_fallback", "1", kCorrupt, "byte_fallback is neither true nor false"},
        Refusal{"/added_tokens/0/id", "-7", kCorrupt, "added_tokens[0] has an id"},
        Refusal{"/added_tokens/0/id", "4294967296", kCorrupt, "added_tokens[0] has an id"},
        Refusal{"/added_tokens/0/content", "\"a\"", kCorrupt, "\"a\" the id 7, which is 0"},
        Refusal{"/added_tokens/0", "{}", kCorrupt, "added_tokens[0] has no key \"id\""},
        Refusal{"/normalizer", "{}", kCorrupt, "normalizer has no key \"type\""},
        Refusal{"/pre_tokenizer/pretokenizers/0/behavior", "\"Odd\"", kCorrupt, "\"Odd\""},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern", "{}", kCorrupt, "\"Regex\""},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \"\"}", kCorrupt, "empty"},
        Refusal{"/post_processor/special_tokens", "{}", kCorrupt, "no key \"<end>\""},
        Refusal{"/post_processor/special_tokens/<end>/ids/0", "8", kCorrupt, "no token id"},
        Refusal{"/post_processor/single", "[]", kCorrupt, "no place for the text"}));

INSTANTIATE_TEST_SUITE_P(
    Unsupported, RefusalTest,
    testing::Values(
        Refusal{"/model/type", "\"Unigram\"", kUnsupported, "model type \"Unigram\""},
        Refusal{"/model/type", "\"WordPiece\"", kUnsupported, "supported: BPE"},
        Refusal{"/model/dropout", "0.1", kUnsupported, "model.dropout"},
        Refusal{"/model/end_of_word_suffix", "\"</w>\"", kUnsupported, "end_of_word_suffix"},
        Refusal{"/normalizer", "{\"type\": \"Lowercase\"}", kUnsupported, "\"Lowercase\""},
        Refusal{"/pre_tokenizer", "{\"type\": \"BertPreTokenizer\"}", kUnsupported,
                "\"BertPreTokenizer\""},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\w+\"", kUnsupported, "\\w"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[a&&b]\"", kUnsupported, "&&"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(\"", kUnsupported,
                "parenthesis"},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(?s:a)\"", kUnsupported,
                "\"(?s:\""},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a(?R)?\"", kUnsupported,
                "\"(?R)\""},
        Refusal{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a(?i)b\"", kUnsupported,
                "\"(?i)\""},
        Refusal{"/decoder", "null", kUnsupported, "decoder: none"},
        Refusal{"/decoder", "{\"type\": \"WordPiece\"}", kUnsupported, "\"WordPiece\""},
        Refusal{"/decoder",
                "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\":"
                " \"ByteFallback\"}]}",
                kUnsupported, "in this place"},
        Refusal{"/post_processor", "{\"type\": \"RobertaProcessing\"}", kUnsupported,
                "\"RobertaProcessing\""}));

// What is found after the normalizer is not what stands in the text: all of the piece is said.
TEST(JsonTokenizer, SpecialTokensThatANormalizerMakesAreFound) {
  Json file = small_file();
  file["normalizer"] = Json::parse(
      R"({"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "Q"}, "content": "<stop"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u0120"}]})");
  file["added_tokens"].push_back(
      Json::parse(R"({"id": 8, "content": "<stop >", "special": true, "normalized": true})"));
  const auto tokenizer = make(file);
  using Ranges = std::vector<TextRange>;
  EXPECT_EQ(tokenizer->special_tokens_in("ab <end> ab"), (Ranges{{3, 8}}));
  EXPECT_EQ(tokenizer->special_tokens_in("ab"), Ranges());
  for (const std::string hidden : {"<stop >", "Q >"}) {
    const std::string text = "ab <end>a" + hidden + "b<end>";
    EXPECT_EQ(tokenizer->encode(hidden, false), Ids{8});
    const Ranges ranges = tokenizer->special_tokens_in(text);
    EXPECT_EQ(ranges, (Ranges{{3, 8}, {8, 10 + hidden.size()}, {text.size() - 5, text.size()}}));
    for (const TokenId id : tokenizer->encode(text, false, ranges)) {
      EXPECT_FALSE(tokenizer->is_special(id));
    }
  }
}

TEST(JsonTokenizer, TextThatIsNotJsonIsCorrupt) {
  for (const char* text : {"", "{", "[]", "null", "\"\xFF\"", "{\"model\": "}) {
    try {
      make_json_tokenizer(text, "dir/tokenizer.json", {});
      FAIL() << "taken: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile) << error.what();
    }
  }
}

// A quadratic merge would take minutes for these.
TEST(JsonTokenizer, LongWordsTakeLittleTime) {
  const auto tokenizer = make(small_file());
  std::string word;
  for (int i = 0; i < 200000; ++i) word += i % 7 == 0 ? "abb" : "ab";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(word, false)), word);
  Json one_word = small_file();
  one_word["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const std::string spaces(500000, ' ');
  EXPECT_EQ(make(one_word)->encode(spaces, false), Ids(spaces.size(), 4));
}

}  // namespace
}  // namespace quantspec
