// What the parts of a tokenizer.json that are lists of steps have in common (normalizer,
// pre_tokenizer, post_processor, decoder): a step or a Sequence of them, and limits, so that a
// broken or hostile file is refused where it would fill the memory or never end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_field.h"

namespace quantspec {

// The steps of `field`, which is one, or a Sequence whose list, of steps and Sequences, is at
// `list_key`. Throws kUnsupportedModel for more than 64, five times what the longest files have.
std::vector<JsonField> steps_of(const JsonField& field, std::string_view list_key);

// A string that a step looks for in a text, as long as a search for it stays fast: neither empty
// (kCorruptFile) nor of more than 1 KiB (kUnsupportedModel).
const std::string& sought_text(const JsonField& field);

// How much may be made of one text, all steps together, in bytes and in time. Twice what any text
// needs in any tokenizer known: most of it where a text is all U+FDFA, of which NFKD makes 18
// characters, and a byte level after it two bytes of each of theirs.
class WorkLimit {
 public:
  // `bytes`: of the text.
  explicit WorkLimit(std::size_t bytes)
      : bytes_left_(kBytesOfByte * (bytes + kFreeBytes)),
        matching_left_(kMatchingOfByte * (bytes + kFreeBytes)) {}

  // The bytes that may still be made.
  std::size_t bytes_left() const { return bytes_left_; }
  // The step at `place` of the file has made so many. Throws kUnsupportedModel.
  void made(std::size_t bytes, std::string_view place);

  // What regular expressions may still take: a unit for every character that they go forward, and
  // for every element that they try.
  std::size_t& matching_left() { return matching_left_; }

 private:
  static constexpr std::size_t kBytesOfByte = 100;
  static constexpr std::size_t kMatchingOfByte = 500;  // a page of prose takes 5
  static constexpr std::size_t kFreeBytes = 1000;

  std::size_t bytes_left_;
  std::size_t matching_left_;
};

}  // namespace quantspec
