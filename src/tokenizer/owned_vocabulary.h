// For tests: a vocabulary and the strings that its views show.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace quantspec {

struct OwnedVocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  Vocabulary rest;  // without both

  // REQUIRES: this object outlives what is made of it.
  Vocabulary get() const {
    Vocabulary vocabulary = rest;
    vocabulary.tokens.assign(tokens.begin(), tokens.end());
    vocabulary.merges.assign(merges.begin(), merges.end());
    return vocabulary;
  }

  void add(const std::string& token, int type = 1) {
    tokens.push_back(token);
    rest.types.push_back(type);
    if (rest.model == "llama") rest.scores.push_back(-static_cast<float>(tokens.size()));
  }
};

// "a", "b", "ab", "abb" and control tokens, of bytes; without BOS.
inline OwnedVocabulary small_gpt2() {
  OwnedVocabulary owned{.rest = {.source = "m.gguf", .model = "gpt2", .pre = "qwen2", .eos = 5}};
  for (const char* token : {"a", "b", "ab", "abb", "\u0120"}) owned.add(token);
  owned.add("<|im_end|>", 3);
  owned.add("<tool>", 4);
  owned.merges = {"a b", "ab b"};
  return owned;
}

// The same of SentencePiece: 0 unknown, 1 BOS, 2 EOS, then all bytes, then the pieces.
inline OwnedVocabulary small_llama() {
  OwnedVocabulary owned{.rest = {.source = "m.gguf", .model = "llama", .bos = 1, .eos = 2}};
  owned.add("<unk>", 2);
  owned.add("<s>", 3);
  owned.add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) owned.add(fmt::format("<0x{:02X}>", byte), 6);
  for (const char* piece : {"ab", "abb", "\u2581a", "\u2581", "a", "b"}) owned.add(piece);
  return owned;
}

}  // namespace quantspec
