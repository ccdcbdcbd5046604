// For tests: a small tokenizer with everything that can be in one; every test breaks or changes a
// part of it.
#pragma once

#include <memory>

#include "base/json.h"
#include "tokenizer/json_tokenizer.h"

namespace quantspec {

inline Json small_file() {
  return Json::parse(R"({
    "added_tokens": [{"id": 7, "content": "<end>", "special": true, "normalized": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s*\\p{L}+"}, "behavior": "Isolated",
       "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<end>"}}, {"Sequence": {"id": "A"}}],
      "special_tokens": {"<end>": {"id": "<end>", "ids": [7]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "ab": 2, "abb": 3, "\u0120": 4, "\u00c3": 5, "\u00a9": 6},
      "merges": ["a b", ["ab", "b"]]}})");
}

inline std::unique_ptr<Tokenizer> make(const Json& file, const TokenizerConfig& config = {}) {
  return make_json_tokenizer(file.dump(), "dir/tokenizer.json", config);
}

}  // namespace quantspec
