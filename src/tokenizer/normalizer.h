// The "normalizer" of a tokenizer.json: what happens to a text before it is cut into words. Read:
// NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence; anything else is refused by name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/json_field.h"

namespace quantspec {

// Immutable: threads may share one.
class Normalizer {
 public:
  // No field: text passes unchanged.
  explicit Normalizer(const std::optional<JsonField>& field);

  // REQUIRES: valid UTF-8.
  std::string apply(std::string text) const;

 private:
  using Step = std::function<std::string(std::string)>;
  void add(const JsonField& field);

  std::vector<Step> steps_;
};

}  // namespace quantspec
