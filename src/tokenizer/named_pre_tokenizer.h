// The pre-tokenizers that gpt2 vocabularies name, as their models' tokenizer.json have them.
#pragma once

#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace quantspec {

struct NamedPreTokenizer {
  std::vector<std::string_view>
      splits;                   // regular expressions, each cuts what the one before has left
  bool composes = false;        // the text is in normal form C before it is cut
  bool ignores_merges = false;  // a word that is a token stays whole
  bool adds_bos = false;        // where the file does not say

  Json normalizer() const;     // as a tokenizer.json has them
  Json pre_tokenizer() const;  // ends in the bytes of each word
};

// nullptr for a name that is not known.
const NamedPreTokenizer* find_pre_tokenizer(std::string_view name);

}  // namespace quantspec
