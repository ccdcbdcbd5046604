#include "datasets/kinds.h"

namespace quantspec {

std::span<const DatasetKind> dataset_kinds() {
  static const std::vector<DatasetKind> kinds = {
      {.name = "text",
       .form = PromptForm::kPiece,
       .text_suffixes = {".txt"},
       .front_tokens = 1000,
       .front_bytes_per_token = 400},
      // The paper's converter drops the first 8000 tokens of a book.
      {.name = "pg19",
       .form = PromptForm::kPiece,
       .text_suffixes = {".txt"},
       .record_suffixes = {".json", ".jsonl"},
       .field = "text",
       .front_tokens = 8000},
      // NOTE: a folder of ∞Bench holds other tasks of the same schema, so the name is the whole
      // one.
      {.name = "infinitebench",
       .form = PromptForm::kTask,
       .record_suffixes = {"longbook_sum_eng.jsonl"},
       .field = "context",
       .instruction = "You are given a book. Please summarize it.\n\n",
       .question = "\n\nNow please summarize the book.\n\nSummary:"},
      {.name = "multilexsum",
       .form = PromptForm::kTask,
       .record_suffixes = {".json", ".jsonl"},
       .field = "sources",
       .instruction = "You are given the documents of a lawsuit. Please summarize the case.\n\n",
       .question = "\n\nNow please summarize the case.\n\nSummary:"},
      {.name = "wikitext",
       .form = PromptForm::kJoined,
       .text_suffixes = {".raw", ".tokens", ".txt"}},
      {.name = "c4",
       .form = PromptForm::kJoined,
       .record_suffixes = {".json", ".jsonl"},
       .field = "text"},
      {.name = "recall",
       .form = PromptForm::kRecall,
       .text_suffixes = {".txt"},
       .front_tokens = 1000,
       .front_bytes_per_token = 400},
      {.name = "tasks",
       .form = PromptForm::kTask,
       .record_suffixes = {".json", ".jsonl"},
       .field = "text",
       .kept = Kept::kEnd,
       .question_field = "task",
       .answer_field = "answer"},
  };
  return kinds;
}

}  // namespace quantspec
