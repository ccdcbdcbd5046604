// What sets one kind of dataset apart: data, which the loaders and the cutters obey.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace quantspec {

enum class PromptForm {
  kPiece,   // consecutive pieces of each document
  kJoined,  // consecutive pieces of all documents, put together
  kTask,    // instruction, as much of a document as there is room for, question
  kRecall,  // as kPiece, the end replaced by the start of an earlier passage
};

// kTask: what stays of a document that is too long.
enum class Kept { kStart, kEnd };

struct DatasetKind {
  std::string_view name;
  PromptForm form;
  // How the names of its files end, with or without a .gz after that. A folder is searched for
  // them.
  std::vector<std::string_view> text_suffixes;
  std::vector<std::string_view> record_suffixes;
  std::string_view field;  // of a record: holds the document
  // Tokens at the start of a document that no prompt is cut from (title pages, contents): so many,
  // but not more than one for every so many bytes of the document, of which about 4 make a token.
  int front_tokens = 0;
  int front_bytes_per_token = 1;
  Kept kept = Kept::kStart;
  std::string_view instruction;     // kTask: before the document
  std::string_view question;        // kTask: after it
  std::string_view question_field;  // of a record: holds the question, where each has its own
  std::string_view answer_field;    // of a record: holds what truly follows; it may be missing
};

std::span<const DatasetKind> dataset_kinds();

}  // namespace quantspec
