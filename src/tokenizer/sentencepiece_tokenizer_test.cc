#include "tokenizer/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/expect_error.h"
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

// --- models made for the test -------------------------------------------------------------------

// Protocol Buffers: a field of bytes, an integer.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string bytes_field(int number, const std::string& bytes) {
  return varint(number * 8 + 2) + varint(bytes.size()) + bytes;
}
std::string integer_field(int number, std::uint64_t value) {
  return varint(number * 8) + varint(value);
}

enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };
std::string piece(const std::string& text, float score = 0, PieceType type = kNormal) {
  const auto bits = std::bit_cast<std::array<char, 4>>(score);
  return bytes_field(1, bytes_field(1, text) + varint(2 * 8 + 5) + std::string(bits.data(), 4) +
                            integer_field(3, type));
}
std::string trainer(int model_type) { return bytes_field(2, integer_field(3, model_type)); }
std::string charsmap_field(const std::string& charsmap) {
  return bytes_field(3, bytes_field(2, charsmap));
}

enum ModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
const std::string kSmallPieces = piece("<unk>", 0, kUnknown) + piece("\u2581") + piece("b");

void expect_refused(const std::string& model, const std::string& mention,
                    ErrorKind kind = ErrorKind::kUnsupportedModel) {
  expect_error(kind, {"dir/tokenizer.model: ", mention},
               [&] { make_sentencepiece_tokenizer(model, "dir/tokenizer.model", {}); });
}

// Reads outside of its tables, recursion without end and hours of copying, in the library.
TEST(HostileModel, WhatTheLibraryCannotTakeIsRefused) {
  std::string nested = kSmallPieces + trainer(kBpe);
  for (int size = 1; size <= 64; ++size) nested += piece(std::string(size, 'a'), 0, kUserDefined);
  EXPECT_NO_THROW(
      make_sentencepiece_tokenizer(nested, "f", {})->encode(std::string(1000, 'a'), false));
  expect_refused(nested + piece(std::string(65, 'a'), 0, kUserDefined), "more than 64");

  const std::string longest(512, 'a');
  EXPECT_NO_THROW(make_sentencepiece_tokenizer(kSmallPieces + piece(longest), "f", {}));
  for (const PieceType type : {kNormal, kUserDefined, kUnused}) {
    expect_refused(kSmallPieces + piece(longest + 'a', 0, type), "512 bytes");
  }
  // A later field of another kind does not hide the text, nor an integer that is cut its type.
  const std::string hidden = bytes_field(1, longest + 'a') + integer_field(1, 5);
  expect_refused(kSmallPieces + bytes_field(1, hidden), "512 bytes");
  expect_refused(nested + bytes_field(1, bytes_field(1, std::string(65, 'a')) +
                                             integer_field(3, (std::uint64_t{1} << 32) + 4)),
                 "more than 64");
  for (const std::uint64_t no_type : {0, 7, 99}) {  // leaves the type before it as it was
    expect_refused(
        nested + bytes_field(1, bytes_field(1, std::string(65, 'a')) +
                                    integer_field(3, kUserDefined) + integer_field(3, no_type)),
        "more than 64");
  }
  expect_refused(varint((std::uint64_t{1} << 32) + 10) + varint(1) + "a", "not a SentencePiece",
                 ErrorKind::kCorruptFile);

  expect_refused(kSmallPieces + piece("c", std::nanf("")), "score", ErrorKind::kCorruptFile);
  expect_refused(kSmallPieces + bytes_field(2, bytes_field(44, longest + 'a')), "unk_surface");
  const std::string test = bytes_field(1, bytes_field(1, std::string(3'000'000, 'c')));
  EXPECT_NO_THROW(make_sentencepiece_tokenizer(kSmallPieces + bytes_field(4, test), "f", {}));
  std::string many = kSmallPieces;
  for (int i = 0; i < 1 << 20; ++i) many += piece("x");
  expect_refused(many, "1048575 pieces");
  many.resize(many.size() / 4);
  EXPECT_THROW(make_sentencepiece_tokenizer(many, "f", {}), Error);  // of one name
}

// normalizer_spec (3) { precompiled_charsmap (2) }: the library would follow these out of bounds.
TEST(HostileModel, NormalizationTablesThatPointOutsideAreCorrupt) {
  const auto with_charsmap = [](const std::string& charsmap) {
    return bundled_model() + charsmap_field(charsmap);
  };
  using namespace std::string_literals;
  expect_corrupt(with_charsmap("\x04\0\0"s));                      // no whole size
  expect_corrupt(with_charsmap("\0\0\0\0\0"s));                    // an empty trie
  expect_corrupt(with_charsmap("\x08\0\0\0\0\0\0\0"s));            // larger than the blob
  expect_corrupt(with_charsmap("\x04\0\0\0\0\0\0\0\0"s));          // children beyond the end
  expect_corrupt(with_charsmap("\x04\0\0\0\xFF\xFF\xFF\x7F\0"s));  // far beyond
  EXPECT_NO_THROW(make_sentencepiece_tokenizer(with_charsmap(""), "f", {}));  // none at all
}

// A charsmap of a trie in which a's follow each other: `length` of them, the last one again if
// `is_loop`, and every `value_every`th is replaced by `result`.
std::string charsmap_of(int length, bool is_loop, int value_every, const std::string& result) {
  // The children of unit i are at i ^ offset ^ label: those of the nth a in the nth block of 256.
  constexpr std::uint32_t kValue = 1u << 31;
  std::vector<std::uint32_t> units(256 * (length + 2), kValue);  // no children of others
  const auto at = [](int n) { return n == 0 ? 0u : 256u * n ^ 'a'; };
  for (int n = 0; n <= length; ++n) {
    const std::uint32_t children = 256 * (n + 1 - (is_loop && n == length ? 1 : 0));
    const bool has_value = n > 0 && n % value_every == 0;
    units[at(n)] = (n == 0 ? 0 : 'a') | (has_value ? 1 << 8 : 0) | (at(n) ^ children) << 10;
    if (has_value) units[children] = kValue;  // at 0: the first of the strings
  }
  const std::uint32_t size = 4 * units.size();
  std::string bytes(reinterpret_cast<const char*>(&size), 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), size);
  return bytes + result + '\0';
}

// The library keeps up to 32 rules that begin at one place, walks down the trie as far as a text
// goes, and takes over whatever the rules put into a text.
TEST(HostileModel, NormalizationRulesWithoutEndAreRefused) {
  const auto model = [](const std::string& charsmap) {
    return kSmallPieces + piece("a") + charsmap_field(charsmap);
  };
  const auto takes = [&](const std::string& charsmap) {
    const auto tokenizer = make_sentencepiece_tokenizer(model(charsmap), "f", {});
    return tokenizer->encode(std::string(1000, 'a'), false);
  };
  EXPECT_EQ(takes(charsmap_of(1, false, 1, std::string(16, 'b'))).size(), 16'001u);
  EXPECT_EQ(takes(charsmap_of(32, false, 1, "b")).size(), 33u);  // 31 times 32, and 8
  EXPECT_EQ(takes(charsmap_of(200, false, 200, "b")).size(), 6u);
  EXPECT_EQ(takes(charsmap_of(1, false, 1, " b b b b")).size(), 8'000u);  // a space: three bytes
  const std::string problem = "normalization rules";
  expect_refused(model(charsmap_of(1, false, 1, std::string(17, 'b'))), problem);
  expect_refused(model(charsmap_of(1, false, 1, " b b b bb")), problem);
  expect_refused(model(charsmap_of(33, false, 1, "b")), problem);
  expect_refused(model(charsmap_of(201, false, 201, "b")), problem);
  expect_refused(model(charsmap_of(1, true, 2, "b")), problem);
  expect_refused(model(charsmap_of(1, true, 1, "b")), problem);
}

// The library puts a run of unknown characters together in quadratic time.
TEST(HostileModel, UnknownTextTakesLittleTime) {
  const Stopwatch clock;
  for (const ModelType type : {kUnigram, kBpe, kWord, kChar}) {
    const auto tokenizer = make_sentencepiece_tokenizer(kSmallPieces + trainer(type), "f", {});
    EXPECT_EQ(tokenizer->vocab_size(), 3);
    const std::string unknown(400'000, 'x');
    const Ids ids = tokenizer->encode(unknown, false);
    EXPECT_EQ(ids, type == kWord ? Ids{0} : (Ids{1, 0}));
    EXPECT_EQ(tokenizer->encode("b\u00e9xbbxx", false),
              type == kWord ? Ids{0} : (Ids{1, 2, 0, 2, 2, 0}));
    EXPECT_EQ(tokenizer->token_bytes(3), "");
  }
  EXPECT_LT(clock.seconds(), 15);
}

// The library finds control pieces in a text that consists of nothing else, or of characters, and
// then has none of the text left for them.
TEST(HostileModel, TextsThatTheLibraryCannotEncodeAreNotSupported) {
  const std::string no_dummy_prefix = bytes_field(3, integer_field(3, 0));
  for (const ModelType type : {kWord, kChar}) {
    const auto tokenizer = make_sentencepiece_tokenizer(
        kSmallPieces + piece("c", 0, kControl) + trainer(type) + no_dummy_prefix, "f", {});
    EXPECT_EQ(tokenizer->encode("b", false), Ids{2});
    expect_error(ErrorKind::kUnsupportedModel, {"f: SentencePiece cannot encode this text"},
                 [&] { tokenizer->encode("c", false); });
  }
}

// The library counts the bytes of what it makes of a text in 32 bits.
TEST(SentencePieceTokenizer, TextsAreTakenUpToWhatTheLibraryCounts) {
  expect_error(ErrorKind::kInvalidRequest,
               {"a text of 150000000 bytes", "up to 134217726", "shorter"},
               [] { make({})->encode(std::string(150'000'000, 'x'), false); });
}

// What is unknown is a piece wherever it stands, and byte pieces come after all of the model's.
TEST(SentencePieceTokenizer, TheUnknownPieceMayBeAnyOne) {
  const std::string pieces =
      piece("\u2581") + piece("b") + piece("<unk>", 0, kUnknown) + piece("a");
  for (const ModelType type : {kUnigram, kBpe, kChar}) {
    const auto tokenizer = make_sentencepiece_tokenizer(pieces + trainer(type), "f", {});
    EXPECT_EQ(tokenizer->vocab_size(), 4);
    EXPECT_EQ(tokenizer->encode("bxxa", false), (Ids{0, 1, 2, 3}));
  }
  expect_refused(piece("b") + trainer(kBpe), "not a SentencePiece model", ErrorKind::kCorruptFile);
}

// Such a model cannot be given byte pieces.
TEST(HostileModel, PiecesThatAreNamedAsBytesStayWhatTheyAre) {
  for (const ModelType type : {kUnigram, kBpe}) {
    const std::string model = kSmallPieces + piece("<0x41>", 0, kUserDefined) + trainer(type);
    const auto tokenizer = make_sentencepiece_tokenizer(model, "f", {});
    EXPECT_EQ(tokenizer->encode("b<0x41>xx", false), (Ids{1, 2, 3, 0}));
    expect_error(ErrorKind::kInvalidRequest, {"f: a text of 100000 bytes", "up to 87381"},
                 [&] { tokenizer->encode(std::string(100'000, 'x'), false); });
  }
}

}  // namespace
}  // namespace quantspec
