// The regular expressions of a tokenizer.json, through PCRE2 with JIT.
//
// The files are written for Oniguruma (Ruby syntax) with Unicode properties. PCRE2 reads the same
// text with the same meaning for what these files use; an escape, a group or a class operator that
// the two may read differently is refused by name. Immutable after construction: threads may share
// one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace quantspec {

class JsonField;
class WorkLimit;

// A part of a text, [begin, end) in bytes.
struct TextSpan {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

class Regex {
 public:
  // `place` is named when the pattern is refused (kUnsupportedModel).
  Regex(std::string_view pattern, const JsonField& place);

  // Cuts `text` into matches and what lies between them. Throws kUnsupportedModel where that takes
  // more time than the limit has left, or too much memory. REQUIRES: valid UTF-8.
  std::vector<TextSpan> cut(std::string_view text, WorkLimit& limit) const;

 private:
  std::string place_;
  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace quantspec
