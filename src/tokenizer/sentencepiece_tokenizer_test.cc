#include "tokenizer/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/files.h"

namespace quantspec {
namespace {

using Ids = std::vector<TokenId>;

const std::string& bundled_model() {
  static const std::string model =
      read_file(std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m/tokenizer.model");
  return model;
}

std::unique_ptr<Tokenizer> make(const TokenizerConfig& config) {
  return make_sentencepiece_tokenizer(bundled_model(), "dir/tokenizer.model", config);
}

TokenizerConfig chat_config() {
  TokenizerConfig config;
  config.added_tokens = {
      {.id = 1, .content = "<s>", .special = true},
      {.id = 2, .content = "</s>", .special = true},
      {.id = 8192, .content = "<|im_start|>", .special = true},
      {.id = 8193, .content = "<tool>", .lstrip = true},
  };
  return config;
}

void expect_corrupt(const std::string& model) {
  try {
    make_sentencepiece_tokenizer(model, "dir/tokenizer.model", {});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile);
    EXPECT_STREQ(error.what(), "dir/tokenizer.model: not a SentencePiece model");
  }
}

TEST(SentencePieceTokenizer, AddsBosUnlessTheConfigSaysOtherwise) {
  EXPECT_EQ(make({})->encode("plain text", true), (Ids{1, 2065, 6437}));
  EXPECT_EQ(make({})->encode("plain text", false), (Ids{2065, 6437}));
  TokenizerConfig config;
  config.adds_bos = false;
  config.adds_eos = true;
  EXPECT_EQ(make(config)->encode("plain text", true), (Ids{2065, 6437, 2}));
  EXPECT_EQ(make(config)->bos(), 1);
  EXPECT_EQ(make(config)->eos(), 2);
  EXPECT_EQ(make(config)->vocab_size(), 8192);
}

// The ids are those of Hugging Face's LlamaTokenizer (transformers 5.23, tokenizers 0.23) for the
// same model with the same added tokens.
TEST(SentencePieceTokenizer, AddedTokensAreFoundAndTextAfterThemGetsNoSpace) {
  const auto tokenizer = make(chat_config());
  const Ids chat = {1, 8192, 419, 270, 13, 8112, 8111, 484, 8193, 7147};
  EXPECT_EQ(tokenizer->encode("<|im_start|>user\nhi there<tool> x", true), chat);
  EXPECT_EQ(tokenizer->decode(chat), "user\nhi there<tool> x");
  EXPECT_EQ(tokenizer->encode("Once <tool>upon a time", true),
            (Ids{1, 5142, 8193, 4743, 261, 587}));
  EXPECT_EQ(tokenizer->encode("a</s>b <s>c", true), (Ids{1, 261, 2, 8126, 8105, 1, 8119}));
  EXPECT_EQ(tokenizer->vocab_size(), 8194);
}

TEST(SentencePieceTokenizer, LegacyModelsPutASpaceAfterAnAddedToken) {
  TokenizerConfig config = chat_config();
  config.legacy = true;
  const Ids word = make({})->encode("c", false);
  EXPECT_EQ(make(config)->encode("<s>c", false), (Ids{1, word[0]}));
  EXPECT_NE(make(chat_config())->encode("<s>c", false), (Ids{1, word[0]}));
}

TEST(SentencePieceTokenizer, ATokenOfTheConfigMayBeEos) {
  TokenizerConfig config = chat_config();
  config.eos = "<|im_start|>";
  EXPECT_EQ(make(config)->eos(), 8192);
  config.eos = "no such token";
  EXPECT_EQ(make(config)->eos(), std::nullopt);
}

TEST(SentencePieceTokenizer, AContinuedTextKeepsItsSpace) {
  const auto tokenizer = make({});
  StreamDecoder begins(*tokenizer);
  StreamDecoder continues(*tokenizer, /*at_start=*/false);
  EXPECT_EQ(begins.push(2065), "plain");
  EXPECT_EQ(continues.push(2065), " plain");
  begins.flush();
  EXPECT_EQ(begins.push(2065), "plain");
}

TEST(SentencePieceTokenizer, BytesOfACharacterComeOutWhenItIsWhole) {
  const auto tokenizer = make({});
  const Ids ids = tokenizer->encode("\xF0\x9F\x98\x80", false);  // U+1F600, through byte tokens
  ASSERT_EQ(ids.size(), 5u);                                     // a space and four bytes
  StreamDecoder stream(*tokenizer);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(stream.push(ids[i]), "");
  EXPECT_EQ(stream.push(ids[4]), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(SentencePieceTokenizer, BrokenFilesAreCorrupt) {
  expect_corrupt("");
  expect_corrupt("not a model");
  expect_corrupt(std::string(1000, '\0'));
  expect_corrupt(std::string(1000, '\xFF'));
  expect_corrupt(bundled_model().substr(0, bundled_model().size() / 2));
}

// normalizer_spec (3) { precompiled_charsmap (2) }: the library would follow these out of bounds.
TEST(SentencePieceTokenizer, NormalizationTablesThatPointOutsideAreCorrupt) {
  const auto with_charsmap = [](const std::string& charsmap) {
    const std::string inner = '\x12' + std::string(1, char(charsmap.size())) + charsmap;
    return bundled_model() + '\x1A' + std::string(1, char(inner.size())) + inner;
  };
  using namespace std::string_literals;
  expect_corrupt(with_charsmap("\x04\0\0"s));                      // no whole size
  expect_corrupt(with_charsmap("\0\0\0\0\0"s));                    // an empty trie
  expect_corrupt(with_charsmap("\x08\0\0\0\0\0\0\0"s));            // larger than the blob
  expect_corrupt(with_charsmap("\x04\0\0\0\0\0\0\0\0"s));          // children beyond the end
  expect_corrupt(with_charsmap("\x04\0\0\0\xFF\xFF\xFF\x7F\0"s));  // far beyond
  EXPECT_NO_THROW(make_sentencepiece_tokenizer(with_charsmap(""), "f", {}));  // none at all
}

}  // namespace
}  // namespace quantspec
