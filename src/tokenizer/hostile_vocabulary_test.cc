// Vocabularies that are broken, made to do harm, or large.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/expect_error.h"
#include "tokenizer/owned_vocabulary.h"

namespace quantspec {
namespace {

using Ids = std::vector<TokenId>;
using Change = std::function<void(OwnedVocabulary&)>;

constexpr ErrorKind kCorrupt = ErrorKind::kCorruptFile;
constexpr ErrorKind kUnsupported = ErrorKind::kUnsupportedModel;

void expect_refused(OwnedVocabulary owned, const Change& change, const std::string& mention,
                    ErrorKind kind = kCorrupt) {
  change(owned);
  expect_error(kind, {"m.gguf: tokenizer.ggml.", mention}, [&] { make_tokenizer(owned.get()); });
}

TEST(Vocabulary, SmallOnesAreTaken) {
  const OwnedVocabulary gpt2 = small_gpt2();
  const auto bytes = make_tokenizer(gpt2.get());
  EXPECT_EQ(bytes->encode("abb a<|im_end|>b<tool>", true), (Ids{3, 4, 0, 5, 1, 6}));
  EXPECT_EQ(bytes->decode(Ids{3, 4, 0, 5, 1, 6}), "abb ab<tool>");
  EXPECT_TRUE(bytes->is_special(5));
  EXPECT_FALSE(bytes->is_special(6));
  EXPECT_EQ(bytes->eos(), 5);

  const OwnedVocabulary llama = small_llama();
  const auto pieces = make_tokenizer(llama.get());
  EXPECT_EQ(pieces->encode("abb", true), (Ids{1, 262, 260}));
  EXPECT_EQ(pieces->encode("a</s>a", false), (Ids{261, 2, 261}));
  EXPECT_EQ(pieces->decode(Ids{261, 2, 261, 3 + 'x'}), "a ax");
}

TEST(Vocabulary, ArraysThatContradictEachOtherAreCorrupt) {
  for (const auto& owned : {small_gpt2(), small_llama()}) {
    expect_refused(
        owned, [](auto& v) { v.rest.types.pop_back(); }, "token_type has");
    expect_refused(
        owned, [](auto& v) { v.rest.types.clear(); }, "token_type is missing");
    expect_refused(
        owned, [](auto& v) { v.rest.types[3] = 0; }, "token_type [3] is 0");
    expect_refused(
        owned, [](auto& v) { v.rest.types[3] = 7; }, "token_type [3] is 7");
    expect_refused(
        owned, [](auto& v) { v.tokens.clear(); }, "tokens is missing or empty");
    expect_refused(
        owned, [](auto& v) { v.tokens[1] = v.tokens[0]; }, "twice, as 0 and 1");
    expect_refused(
        owned, [](auto& v) { v.tokens[1] = "\x80"; }, "tokens [1] is no UTF-8");
    expect_refused(
        owned, [](auto& v) { v.rest.bos = v.tokens.size(); }, "bos_token_id is");
    expect_refused(
        owned, [](auto& v) { v.rest.eos = -1; }, "eos_token_id is -1");
    expect_refused(
        owned, [](auto& v) { v.rest.padding = 99999; }, "padding_token_id is 99999");
    expect_refused(
        owned, [](auto& v) { v.tokens[1] = std::string((1 << 16) + 1, 'x'); }, "65536 bytes",
        kUnsupported);
    expect_refused(
        owned,
        [](auto& v) {
          v.rest.bos = std::nullopt;
          v.rest.add_bos = true;
        },
        "bos_token_id is missing");
    expect_refused(
        owned, [](auto& v) { v.rest.model = "t5"; }, "the tokenizer \"t5\"", kUnsupported);
  }
}

TEST(Vocabulary, Gpt2NeedsItsPreTokenizerAndMergesOfTokens) {
  const OwnedVocabulary owned = small_gpt2();
  expect_refused(
      owned, [](auto& v) { v.rest.pre = ""; }, "pre: a gpt2", kUnsupported);
  expect_refused(
      owned, [](auto& v) { v.rest.pre = ""; }, "gpt-2, gpt-4o,", kUnsupported);
  expect_refused(
      owned, [](auto& v) { v.rest.pre = "default"; }, "\"default\"", kUnsupported);
  expect_refused(
      owned, [](auto& v) { v.rest.pre = "x\x1b"; }, "\"x\\u001b\"", kUnsupported);
  expect_refused(
      owned, [](auto& v) { v.merges[0] = "ab"; }, "merges [0] is not two tokens");
  expect_refused(
      owned, [](auto& v) { v.merges[0] = ""; }, "merges [0] is not two tokens");
  expect_refused(
      owned, [](auto& v) { v.merges[1] = "ab c"; }, "[1] names \"abc\"");
  expect_refused(
      owned, [](auto& v) { v.merges[1] = "b a"; }, "[1] names \"ba\"");
  expect_refused(
      owned, [](auto& v) { v.merges[1] = "a b b"; }, "[1] names \"ab b\"");
  expect_refused(
      owned, [](auto& v) { v.rest.types[0] = 6; }, "token_type has bytes");
}

TEST(Vocabulary, LlamaNeedsScoresBytesAndOneUnknownToken) {
  const OwnedVocabulary owned = small_llama();
  expect_refused(
      owned, [](auto& v) { v.rest.scores.pop_back(); }, "scores has 264 elements");
  expect_refused(
      owned, [](auto& v) { v.rest.scores.clear(); }, "scores is missing");
  expect_refused(
      owned, [](auto& v) { v.rest.types[1] = 2; }, "two unknown tokens");
  for (const char* token : {"<0x-1>", "<0x0a>", "<0x0>", "<0x000>", "0x0A", ""}) {
    expect_refused(
        owned, [&](auto& v) { v.tokens[13] = token; }, "tokens [13] is a byte");
  }
  expect_refused(
      owned, [](auto& v) { v.rest.types[13] = 1; }, "has 255 bytes");
  OwnedVocabulary broken = owned;
  broken.rest.scores[300 - 40] = std::nanf("");
  expect_error(kCorrupt, {"m.gguf: ", "score"}, [&] { make_tokenizer(broken.get()); });
}

// Converters make a control token of "<unk>" where a tokenizer_config.json lists it.
TEST(Vocabulary, TheUnknownTokenIsFoundByItsIdOrNameToo) {
  OwnedVocabulary owned = small_llama();
  owned.rest.types[0] = 3;
  EXPECT_EQ(make_tokenizer(owned.get())->encode("abb", false), (Ids{262, 260}));
  owned.tokens[0] = "<unknown>";
  expect_refused(
      owned, [](auto&) {}, "no unknown token");
  owned.rest.unknown = 0;
  EXPECT_EQ(make_tokenizer(owned.get())->encode("abb", false), (Ids{262, 260}));
}

// Converters write the spaces of user-defined tokens as they stand in a text.
TEST(Vocabulary, SpacesOfUserDefinedTokensAreFound) {
  OwnedVocabulary owned = small_llama();
  owned.rest.add_space_prefix = false;
  owned.add("   ", 4);
  const TokenId spaces = static_cast<TokenId>(owned.tokens.size()) - 1;
  const auto tokenizer = make_tokenizer(owned.get());
  EXPECT_EQ(tokenizer->encode("a   b", false), (Ids{263, spaces, 264}));
  EXPECT_EQ(tokenizer->decode(Ids{263, spaces, 264}), "a   b");
}

TEST(Vocabulary, EmptyAndUnusedTokensAreNoText) {
  for (OwnedVocabulary owned : {small_gpt2(), small_llama()}) {
    owned.add("");
    owned.add("");
    owned.add("[PAD1]", 5);
    const auto tokenizer = make_tokenizer(owned.get());
    const auto size = static_cast<TokenId>(owned.tokens.size());
    EXPECT_EQ(tokenizer->vocab_size(), size);
    EXPECT_EQ(tokenizer->decode(Ids{size - 3, size - 2}), "");
    for (const TokenId id : tokenizer->encode("[PAD1]ab", false)) EXPECT_LT(id, size - 3);
  }
}

// As Hugging Face's added tokens with rstrip, which no key of the file says.
TEST(Vocabulary, TokensOfPhi3SwallowWhiteSpace) {
  OwnedVocabulary owned = small_llama();
  owned.add("<|user|>", 3);
  const TokenId user = static_cast<TokenId>(owned.tokens.size()) - 1;
  EXPECT_EQ(make_tokenizer(owned.get())->encode("<|user|>\n a", false).size(), 4u);
  owned.rest.name = "Phi 3 mini, a Phi-3";
  EXPECT_EQ(make_tokenizer(owned.get())->encode("<|user|>\n a", false), (Ids{user, 261}));
  EXPECT_EQ(make_tokenizer(owned.get())->encode("<s> a", false).size(), 3u);
}

TEST(EndOfGeneration, IsFoundByIdAndByTheTextOfControlTokens) {
  OwnedVocabulary owned = small_gpt2();
  EXPECT_EQ(end_of_generation(owned.get()), Ids{5});
  owned.add("<|endoftext|>", 3);
  owned.add("<|eot_id|>");  // no control token
  owned.add("<|end|>", 3);
  owned.rest.eot = 0;
  EXPECT_EQ(end_of_generation(owned.get()), (Ids{0, 5, 7, 9}));
  owned.add("<|call|>", 3);
  owned.add("<|return|>", 3);
  EXPECT_EQ(end_of_generation(owned.get()), (Ids{0, 5, 7, 10, 11}));
  owned.rest.eom = 12;
  expect_error(kCorrupt, {"m.gguf: tokenizer.ggml.eom_token_id is 12"},
               [&] { end_of_generation(owned.get()); });
}

TEST(LargeVocabulary, EveryPreTokenizerTakesLongRunsOfOneKind) {
  OwnedVocabulary owned = small_gpt2();
  owned.rest.add_bos = false;
  const Stopwatch clock;
  for (const std::string_view name : pre_tokenizer_names()) {
    SCOPED_TRACE(name);
    owned.rest.pre = name;
    const auto tokenizer = make_tokenizer(owned.get());
    for (const char* run : {" ", "\n", " \n", "A", "a", "1", "!", "/", "\u0301", "\u6f22"}) {
      std::string text;
      for (int i = 0; i < 50'000; ++i) text += run;
      EXPECT_NO_THROW(tokenizer->encode(text, false)) << run;
      EXPECT_NO_THROW(tokenizer->encode(text + 'a', false)) << run;
    }
  }
  EXPECT_LT(clock.seconds(), 60);
}

// A file of 256,000 tokens is loaded while a user waits.
TEST(LargeVocabulary, LoadsInASecond) {
  constexpr int kMany = 256'000;
  OwnedVocabulary bytes = small_gpt2();
  OwnedVocabulary pieces = small_llama();
  for (int i = 0; i < 500; ++i) {
    bytes.add(fmt::format("l{}", i));
    bytes.add(fmt::format("r{}", i));
  }
  for (int i = 0; static_cast<int>(bytes.tokens.size()) < kMany; ++i) {
    bytes.add(fmt::format("l{}r{}", i / 500 % 500, i % 500), i < 250'000 ? 1 : 5);
    bytes.merges.push_back(fmt::format("l{} r{}", i / 500 % 500, i % 500));
    if (i == 249'999) break;
  }
  while (static_cast<int>(pieces.tokens.size()) < kMany) {
    pieces.add(fmt::format("\u2581piece{}", pieces.tokens.size()));
  }
  for (const OwnedVocabulary* owned : {&bytes, &pieces}) {
    const Vocabulary vocabulary = owned->get();
    const Stopwatch clock;
    EXPECT_NO_THROW(make_tokenizer(vocabulary));
    RecordProperty(owned->rest.model, fmt::format("{} s", clock.seconds()));
    EXPECT_LT(clock.seconds(), 10);  // a busy machine; alone it is 0.3
  }
}

}  // namespace
}  // namespace quantspec
