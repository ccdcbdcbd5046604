// The "normalizer" of a tokenizer.json: what happens to a text before it is cut into words. Read:
// NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence; anything else is refused by name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/json_field.h"
#include "tokenizer/steps.h"

namespace quantspec {

// Immutable: threads may share one.
class Normalizer {
 public:
  // No field: text passes unchanged.
  explicit Normalizer(const std::optional<JsonField>& field);

  // Throws kUnsupportedModel where `limit` is reached. REQUIRES: valid UTF-8.
  std::string apply(std::string text, WorkLimit& limit) const;

 private:
  struct Step {
    std::string place;
    // A result of more than `most` bytes is refused, so it may be cut there.
    std::function<std::string(std::string text, std::size_t most)> run;
  };
  static Step read(const JsonField& field);

  std::vector<Step> steps_;
};

}  // namespace quantspec
