// Texts to measure on: books, articles and summarization sets in the forms in which people have
// them, and prompts of an exact number of tokens cut from them (docs/datasets.md).
//
//     text:PATH          a .txt file or a folder of them; the front matter of a Project Gutenberg
//                        book is dropped
//     pg19:PATH          PG-19: its JSON lines, or its folder of .txt files
//     infinitebench:PATH ∞Bench's longbook_sum_eng.jsonl
//     multilexsum:PATH   Multi-LexSum's JSON
//     wikitext:PATH      WikiText's raw text
//     c4:PATH            C4's JSON lines
//     recall:PATH        as text:, but every prompt ends in the first tokens of a passage
//                        recall_distance tokens earlier, so that it continues far back
//     tasks:PATH         JSON lines of a text, what is to be done with it and, where it is known,
//                        the answer
//
// Any of the files may be compressed with gzip, its name then ending in .gz.
//
// Errors: kInvalidRequest for an unknown kind, a path that is not there or a length that no
// document has; kCorruptFile naming file and record. Thread-safe after loading.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

struct DatasetKind;

// So many tokens of the passage end a recall prompt.
inline constexpr int kRecallTokens = 16;

struct Document {
  std::string name;  // file, and the record in it where there are several
  std::string text;
  std::string question = {};  // what its prompt ends in: of the kind, or of the record
  std::string answer = {};    // what truly follows that; empty where it is not known
};

// A prompt of exactly as many tokens as were asked for, what the tokenizer puts before a text (BOS)
// included.
struct Prompt {
  std::string name;  // of its document, and where in it
  std::vector<TokenId> tokens;
  // The tokens that follow the prompt in its document (for recall: that followed the passage; for
  // tasks: the first of the answer), for measurements on true text: as many as were asked for.
  // Empty for the summarization sets, whose prompts end in a question.
  std::vector<TokenId> continuation;
};

struct PromptOptions {
  int length = 0;           // tokens
  int count = 1;            // prompts: one from each document in turn, then further on in them
  int continuation = 0;     // true tokens wanted after each prompt
  int recall_distance = 0;  // recall: tokens from the passage to its repetition; 0: half of length
  bool fewer_will_do = false;  // where there are not as many, those that there are: one or more
};

class Dataset {
 public:
  // spec: KIND:PATH. Reads all of it. Messages about it begin with `field`, or field::kDataset.
  static Dataset load(std::string_view spec);
  static Dataset load(std::string_view spec, Field field);
  static std::vector<std::string_view> kinds();

  const std::string& spec() const { return spec_; }
  const std::vector<Document>& documents() const { return documents_; }

  // Deterministic. Throws kInvalidRequest, naming the longest document and its tokens, when none is
  // long enough, and saying how many prompts there are when they are fewer than wanted and fewer
  // will not do.
  std::vector<Prompt> prompts(const Tokenizer& tokenizer, const PromptOptions& options) const;

 private:
  Dataset(std::string_view spec, Message typed, const DatasetKind& kind)
      : spec_(spec), typed_(std::move(typed)), kind_(&kind) {}

  std::string spec_;
  Message typed_;            // field and spec, with which messages begin
  const DatasetKind* kind_;  // of a table that lives as long as the program
  std::vector<Document> documents_;
};

}  // namespace quantspec
