// The "decoder" of a tokenizer.json: from a token to the bytes it adds to a text. Read: ByteLevel,
// Metaspace, and Replace, ByteFallback, Fuse, Strip in this order; the rest is refused by name.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/json_field.h"

namespace quantspec {

// Immutable: threads may share one.
class TokenDecoder {
 public:
  // A tokenizer.json without a decoder is refused.
  explicit TokenDecoder(const std::optional<JsonField>& field, std::string_view file);

  // `at_start`: in, whether the rule for the first space applies; out, whether it still does.
  std::string decode(std::string_view token, bool& at_start) const;

  // Whether tokens are written in the byte alphabet.
  bool is_byte_level() const { return byte_level_; }

 private:
  // The place of a step in a Sequence.
  enum class Stage { kNone, kReplace, kByteFallback, kWhole, kFuse, kStrip };
  Stage add(const JsonField& field);
  void add_metaspace(const JsonField& field);
  void check_strip(const JsonField& field) const;
  void add_replacement(const JsonField& field);

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool strips_space_ = false;      // one space at the beginning of a text goes
  bool strips_all_marks_ = false;  // marks in the first token go
  std::string mark_;               // Metaspace's sign for a space; empty without
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::size_t most_growth_ = 1;  // bytes that replacements can make of one byte
};

}  // namespace quantspec
