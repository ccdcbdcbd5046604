// The "pre_tokenizer" of a tokenizer.json: cuts a text into the words that BPE works on. Read:
// Split, ByteLevel, Digits, Metaspace and Sequence; anything else is refused by name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/json_field.h"
#include "tokenizer/steps.h"

namespace quantspec {

// A word to be, and whether it stands at the very beginning of the input (Metaspace asks).
struct Word {
  std::string text;
  bool at_start;
};

// Immutable: threads may share one.
class PreTokenizer {
 public:
  // No field: the text is one word.
  explicit PreTokenizer(const std::optional<JsonField>& field);

  // The words of `word`; none is empty. Throws kUnsupportedModel where `limit` is reached.
  // REQUIRES: valid UTF-8.
  std::vector<Word> cut(Word word, WorkLimit& limit) const;

 private:
  // Takes a word and appends its parts. Parts of more bytes than the limit has left are refused,
  // so they may be cut there.
  using Run = std::function<void(const Word&, WorkLimit&, std::vector<Word>&)>;
  struct Step {
    std::string place;
    Run run;
  };
  void add(const JsonField& field);
  void add_split(const JsonField& field);
  void add_byte_level(const JsonField& field);
  void add_digits(const JsonField& field);
  void add_metaspace(const JsonField& field);

  std::vector<Step> steps_;
};

}  // namespace quantspec
