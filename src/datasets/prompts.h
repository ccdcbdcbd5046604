// Documents to prompts of an exact number of tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "datasets/datasets.h"
#include "datasets/kinds.h"

namespace quantspec {

// Cuts the prompts of one call. REQUIRES: everything that is passed outlives the object.
class PromptCutter {
 public:
  // `typed`, field and spec, goes into messages.
  PromptCutter(const DatasetKind& kind, const Message& typed,
               const std::vector<Document>& documents, const Tokenizer& tokenizer,
               const PromptOptions& options);

  // Throws kInvalidRequest when there are not as many as the options ask for, or none.
  std::vector<Prompt> cut();

 private:
  void check_recall();
  void cut_pieces(const std::vector<Document>& documents);
  void cut_piece(const std::string& name, const std::vector<TokenId>& tokens, std::size_t start);
  void turn_into_recall(Prompt& prompt) const;
  void cut_tasks();
  Prompt cut_task(const Document& document);
  std::vector<TokenId> answer_of(const Document& document, const std::vector<TokenId>& asked) const;
  void cut_joined();
  std::size_t front_of(std::string_view text) const;
  std::vector<TokenId> encode(std::string_view text) const;
  void note_length(const std::string& name, std::size_t tokens);
  bool is_done() const { return prompts_.size() == static_cast<std::size_t>(options_.count); }
  [[noreturn]] void fail_too_few() const;

  const DatasetKind& kind_;
  const Message& typed_;
  const std::vector<Document>& documents_;
  const Tokenizer& tokenizer_;
  PromptOptions options_;
  std::vector<TokenId> prefix_;  // what the tokenizer puts before a text
  std::size_t body_ = 0;         // tokens of a prompt after the prefix
  std::size_t needed_ = 0;       // tokens of a document from the start of a prompt on
  std::string longest_name_;
  std::size_t longest_ = 0;  // tokens, the prefix included
  std::vector<Prompt> prompts_;
};

}  // namespace quantspec
