#include "tokenizer/vocabulary.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/expect_error.h"
#include "base/files.h"
#include "base/json.h"
#include "tokenizer/owned_vocabulary.h"
#include "tokenizer/sentencepiece_tokenizer.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

const fs::path kData = fs::path(QUANTSPEC_TESTDATA) / "tokenizer";
const fs::path kBundled = fs::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m/tokenizer.model";

// --- llama ---------------------------------------------------------------------------------------

// What a converter writes of a tokenizer.model.
OwnedVocabulary bundled_vocabulary() {
  sentencepiece::SentencePieceProcessor processor;
  EXPECT_TRUE(processor.LoadFromSerializedProto(read_file(kBundled)).ok());
  OwnedVocabulary owned{.rest = {.source = "m.gguf", .model = "llama", .bos = 1, .eos = 2}};
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    owned.tokens.push_back(processor.IdToPiece(id));
    owned.rest.scores.push_back(processor.GetScore(id));
    owned.rest.types.push_back(processor.IsUnknown(id)   ? 2
                               : processor.IsControl(id) ? 3
                               : processor.IsUnused(id)  ? 5
                               : processor.IsByte(id)    ? 6
                                                         : 1);
  }
  return owned;
}

// The bundled model as a folder that lists its control tokens, which a vocabulary always does.
std::unique_ptr<Tokenizer> bundled_with_control_tokens() {
  TokenizerConfig config{.legacy = true};
  config.added_tokens = {{.id = 1, .content = "<s>", .special = true},
                         {.id = 2, .content = "</s>", .special = true},
                         {.id = 3, .content = "<pad>", .special = true}};
  return make_sentencepiece_tokenizer(read_file(kBundled), "dir/tokenizer.model", config);
}

TEST(LlamaVocabulary, GivesTheIdsOfTheModelItWasMadeOf) {
  const auto tokenizer = make_tokenizer(bundled_vocabulary().get());
  const auto listed = bundled_with_control_tokens();
  const Json cases = parse_json_file(kData / "pg-24m" / "cases.json");
  ASSERT_GE(cases["texts"].size(), 80u);
  int compared = 0;
  for (const Json& row : cases["texts"]) {
    const auto text = row["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text, true), listed->encode(text, true)) << row;
    if (text.find("<s>") != text.npos || text.find("</s>") != text.npos) continue;
    EXPECT_EQ(tokenizer->encode(text, false), row["ids"].get<Ids>()) << row;
    EXPECT_EQ(tokenizer->encode(text, true), row["ids_special"].get<Ids>()) << row;
    ++compared;
  }
  EXPECT_GE(compared, 80);
}

TEST(LlamaVocabulary, GivesTheTextOfTheModelItWasMadeOf) {
  const auto tokenizer = make_tokenizer(bundled_vocabulary().get());
  const Json cases = parse_json_file(kData / "pg-24m" / "cases.json");
  for (const char* part : {"texts", "id_lists"}) {
    for (const Json& row : cases[part]) {
      EXPECT_EQ(tokenizer->decode(row["ids"].get<Ids>()), row["decoded"].get<std::string>()) << row;
    }
  }
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->vocab_size(), 8192);
}

// --- gpt2 ----------------------------------------------------------------------------------------

// The vocabulary of a tokenizer.json of testdata, as a converter writes it.
OwnedVocabulary vocabulary_of(const Json& file, const std::string& pre) {
  OwnedVocabulary owned{.rest = {.source = "m.gguf", .model = "gpt2", .pre = pre}};
  const auto set = [&](std::size_t id, const std::string& token, int type) {
    if (id >= owned.tokens.size()) {
      owned.tokens.resize(id + 1);
      owned.rest.types.resize(id + 1, 5);
    }
    owned.tokens[id] = token;
    owned.rest.types[id] = type;
  };
  for (const auto& [token, id] : file["model"]["vocab"].items()) set(id, token, 1);
  for (const Json& merge : file["model"]["merges"]) {
    owned.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  for (const Json& token : file["added_tokens"]) {
    set(token["id"], token["content"], token["special"].get<bool>() ? 3 : 4);
  }
  return owned;
}

// Whether a text has a token that is found in another way than a vocabulary can say.
bool has_odd_token(const std::string& text) {
  for (const char* token : {"word", "[LS]", "[RS]", "[NORM]", "[\u00c9]"}) {
    if (text.find(token) != text.npos) return true;
  }
  return false;
}

// Ids of Hugging Face's tokenizers for the same tokens and merges.
TEST(Gpt2Vocabulary, GivesTheIdsOfTheOriginalLibrary) {
  for (const auto& [folder, pre] : {std::pair{"llama3", "llama-bpe"}, {"qwen2", "qwen2"}}) {
    OwnedVocabulary owned = vocabulary_of(parse_json_file(kData / folder / "tokenizer.json"), pre);
    const auto begin = std::ranges::find(owned.tokens, "<|begin|>");
    owned.rest.bos = static_cast<TokenId>(begin - owned.tokens.begin());
    const auto tokenizer = make_tokenizer(owned.get());
    int compared = 0;
    const Json cases = parse_json_file(kData / folder / "cases.json");
    for (const Json& row : cases["texts"]) {
      const auto text = row["text"].get<std::string>();
      if (has_odd_token(text)) continue;
      EXPECT_EQ(tokenizer->encode(text, false), row["ids"].get<Ids>()) << pre << row;
      EXPECT_EQ(tokenizer->encode(text, true), row["ids_special"].get<Ids>()) << pre << row;
      EXPECT_EQ(tokenizer->decode(row["ids"].get<Ids>()), row["decoded"].get<std::string>()) << row;
      ++compared;
    }
    EXPECT_GE(compared, 80);
  }
}

}  // namespace
}  // namespace quantspec
