#include "tokenizer/named_pre_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/owned_vocabulary.h"
#include "tokenizer/pre_tokenizer.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

// What tools/make_vocabulary_tests.py had Hugging Face's tokenizers do.
const Json& golden() {
  static const Json cases =
      parse_json_file(fs::path(QUANTSPEC_TESTDATA) / "tokenizer" / "vocabulary" / "cases.json");
  return cases;
}

// How many bytes each word of `text` has: a character of the byte alphabet is one.
std::vector<int> words_of(const NamedPreTokenizer& rules, const std::string& text) {
  const Json normalizer = rules.normalizer();
  const Json pre_tokenizer = rules.pre_tokenizer();
  WorkLimit limit(text.size());
  std::string normal = text;
  if (!normalizer.is_null()) {
    normal = Normalizer(JsonField(normalizer, "f")).apply(text, limit);
  }
  std::vector<int> lengths;
  for (const Word& word : PreTokenizer(JsonField(pre_tokenizer, "f")).cut({normal, true}, limit)) {
    lengths.push_back(static_cast<int>(
        std::ranges::count_if(word.text, [](char c) { return (c & 0xC0) != 0x80; })));
  }
  return lengths;
}

TEST(NamedPreTokenizer, CutsTextsIntoTheWordsOfTheOriginalLibrary) {
  const Json& texts = golden()["texts"];
  ASSERT_GE(texts.size(), 110u);
  ASSERT_GE(golden()["rules"].size(), 13u);
  for (const auto& [name, rules] : golden()["rules"].items()) {
    const NamedPreTokenizer* found = find_pre_tokenizer(name);
    ASSERT_NE(found, nullptr) << name;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(words_of(*found, texts[i].get<std::string>()),
                rules["words"][i].get<std::vector<int>>())
          << name << ": " << texts[i];
    }
  }
}

TEST(NamedPreTokenizer, GivesTheIdsOfTheOriginalLibrary) {
  OwnedVocabulary owned{.rest = {.source = "m.gguf", .model = "gpt2", .add_bos = false}};
  for (const Json& token : golden()["tokens"]) owned.add(token);
  owned.add(golden()["added"][0], 3);
  owned.add(golden()["added"][1], 4);
  owned.merges = golden()["merges"].get<std::vector<std::string>>();
  const Json& texts = golden()["texts"];
  for (const auto& [name, rules] : golden()["rules"].items()) {
    owned.rest.pre = name;
    const auto tokenizer = make_tokenizer(owned.get());
    const std::size_t first = texts.size() - rules["ids"].size();
    for (std::size_t i = first; i < texts.size(); ++i) {
      const auto ids = rules["ids"][i - first].get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer->encode(texts[i].get<std::string>(), true), ids)
          << name << ": " << texts[i];
    }
  }
}

TEST(NamedPreTokenizer, EveryNameIsThatOfAKindThatTheLibraryCuts) {
  const auto is_same = [](const NamedPreTokenizer& a, const NamedPreTokenizer& b) {
    return a.splits == b.splits && a.composes == b.composes && a.ignores_merges == b.ignores_merges;
  };
  EXPECT_GE(pre_tokenizer_names().size(), 25u);
  for (const std::string_view name : pre_tokenizer_names()) {
    const NamedPreTokenizer& rules = *find_pre_tokenizer(name);
    int kinds = 0;
    for (const auto& [kind, unused] : golden()["rules"].items()) {
      kinds += is_same(rules, *find_pre_tokenizer(kind));
    }
    EXPECT_EQ(kinds, 1) << name;
  }
}

}  // namespace
}  // namespace quantspec
