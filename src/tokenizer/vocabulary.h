// Tokenizers made from arrays: what a GGUF file says under `tokenizer.ggml`. A door of this room.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

// The values of the keys `tokenizer.ggml.*`, as they are in the file. What a file does not have
// stays as it is here.
struct Vocabulary {
  std::string source;  // the file, for messages
  std::string model;   // "llama" (BPE of SentencePiece) or "gpt2" (BPE of bytes)
  std::string pre;     // of gpt2: by whose rules a text is cut into words (pre_tokenizer_names)
  std::string name;    // general.name; of llama: Phi-3's tokens swallow the white space after them

  // By id, so that all that are given have one length; scores are llama's alone.
  std::vector<std::string_view> tokens;  // REQUIRES: outlive the call that reads them
  std::vector<float> scores;
  std::vector<int> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte

  std::vector<std::string_view> merges;  // of gpt2: "a b", the first to merge first

  std::optional<TokenId> bos, eos, eot, eom, unknown, padding;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

// The ids equal those of the library that made the vocabulary: SentencePiece, or Hugging Face's
// tokenizers. Control tokens are recognized inside a text, as encode() says; text after one begins
// anew in a llama vocabulary: it gets a space, if texts do. What is returned needs `vocabulary` no
// longer. Throws kCorruptFile for arrays that contradict each other or themselves, and
// kUnsupportedModel for another model or pre-tokenizer, or a gpt2 vocabulary that does not name
// one.
std::unique_ptr<Tokenizer> make_tokenizer(const Vocabulary& vocabulary);

// The tokens at which a generated text ends, ascending: EOS, EOT, EOM, and those control tokens
// whose text says so, since many files name EOS alone. Throws kCorruptFile for ids that are no
// tokens.
std::vector<TokenId> end_of_generation(const Vocabulary& vocabulary);

// The values of `pre` that make_tokenizer takes.
std::vector<std::string_view> pre_tokenizer_names();

}  // namespace quantspec
