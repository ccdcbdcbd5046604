// Text to token ids and back: the public door of this room.
//
// A tokenizer is read from a model folder: `tokenizer.model` (SentencePiece) or, when that is not
// there, `tokenizer.json` (the BPE kinds of Hugging Face: byte-level, and SentencePiece-like with
// byte fallback). Ids equal those of the library that made the file; tests compare them.
//
// A Tokenizer is immutable, so any number of threads may share one. A StreamDecoder belongs to one
// stream. Text is UTF-8; the bytes of an invalid sequence count as U+FFFD.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace quantspec {

// Bytes of a text, from begin on and before end.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`. Added tokens (such as "<|im_end|>") are recognized inside it. With
  // `add_special`, also what the tokenizer puts around a text: BOS, EOS, as its files say.
  // Time and memory are linear in the text: what a file says that would take more throws
  // kUnsupportedModel, a text too long for the file kInvalidRequest, both naming the file. Of a
  // SentencePiece model of words or characters, so does (kUnsupportedModel) a text in which one of
  // them is a control token: the library cannot encode it.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special) const = 0;

  // The same, but that no added token is recognized where it touches one of `plain`, which are in
  // order: for text of others inside a text of one's own. REQUIRES: valid UTF-8.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special,
                                      std::span<const TextRange> plain) const = 0;
  // Where encode() recognizes special tokens, in order; a range may have more text than its token.
  // NOTE: those that a SentencePiece model has
  // as user-defined symbols are the library's to find, and are not among them. REQUIRES: valid
  // UTF-8.
  virtual std::vector<TextRange> special_tokens_in(std::string_view text) const = 0;

  // The text of `ids`: valid UTF-8, without special tokens.
  std::string decode(std::span<const TokenId> ids) const;

  // The bytes `id` adds to a text; they may be a part of a UTF-8 sequence. `at_start` says whether
  // the rule for the first space of a text still applies, and is updated. Special tokens and ids
  // without a token add nothing (a model may have more logits than its tokenizer has tokens).
  virtual std::string token_bytes(TokenId id, bool& at_start) const = 0;

  // The same, in the middle of a text.
  std::string token_bytes(TokenId id) const;

  // Every id is below this.
  virtual int vocab_size() const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;

  // Whether the token is a control token, which is never part of a text.
  virtual bool is_special(TokenId id) const = 0;
  // What the vocabulary calls a token: by this encode() recognizes an added one.
  virtual std::string name(TokenId id) const = 0;

  // How many U+FFFD stand for a broken UTF-8 sequence: one per byte, or one per maximal subpart
  // (Unicode 15, section 3.9). The library whose format it is decides.
  virtual bool marks_every_bad_byte() const = 0;
};

// Throws kInvalidRequest when `model_dir` has neither file, kCorruptFile for a broken file and
// kUnsupportedModel for a valid one that needs more than is described above, or that has more of
// something (steps, added tokens, ids around a text) than any known tokenizer comes near.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_dir);

// Throws kCorruptFile, naming `source` and the byte, where `text` cannot be one: at a NUL, which
// binary files have, and at what is not UTF-8.
void require_text(std::string_view text, std::string_view source);

// `text` without a byte-order mark and with the line ends of Unix: as texts are read from files.
std::string unix_text(std::string_view text);

// Text of a stream of tokens. Every output is valid UTF-8: the bytes of an unfinished character are
// held back. The outputs, put together, are decode() of all the tokens.
class StreamDecoder {
 public:
  // `at_start`: the first token begins a text, so that its leading space may go; otherwise it
  // continues one. REQUIRES: `tokenizer` outlives this object.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool at_start = true)
      : tokenizer_(&tokenizer), at_start_(at_start) {}

  // The text that is certain once `id` has come; often empty inside a character.
  std::string push(TokenId id);

  // Ends the text: what is held back, as U+FFFD. The next push begins a new text.
  std::string flush();

 private:
  std::string take(bool at_end);

  const Tokenizer* tokenizer_;
  bool at_start_;
  std::string held_;  // an unfinished UTF-8 sequence
};

}  // namespace quantspec
