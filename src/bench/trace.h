// Recorded or made-up traffic: who came when, with how long a prompt, and wanted how much. What a
// trace lacks is the text, which is cut from a dataset. docs/bench.md has the file's format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/token.h"
#include "datasets/datasets.h"

namespace quantspec {

struct TraceRequest {
  double arrival = 0;     // seconds
  int prompt_tokens = 1;  // what the tokenizer puts before a text (BOS) included
  int output_tokens = 1;
  // Its first shared_tokens are those of all requests of the same prefix. Empty: it shares none.
  std::string prefix = {};
  int shared_tokens = 0;
  std::string owner = {};  // on whose behalf; owners share the engine fairly
};

struct Trace {
  std::filesystem::path path;
  std::vector<TraceRequest> requests;  // in the order of their arrival, one or more

  int longest_prompt() const;
  // Tokens of the longest request, prompt and output.
  int context() const;
};

// Reads JSON lines. Throws kInvalidRequest where the file cannot be read, and kCorruptFile naming
// the line where it is no trace: so does one of too many bytes, requests or tokens.
Trace read_trace(const std::filesystem::path& path);

// The prompts of a trace's requests, in their order: consecutive pieces of the dataset's text, all
// of which begin differently unless they share a prefix. A text that is too short for that is read
// again from other places on. Throws kInvalidRequest for a text shorter than the longest prompt,
// and for recall, whose prompts are no pieces of a text.
std::vector<std::vector<TokenId>> cut_prompts(const Trace& trace, const Dataset& dataset,
                                              const Tokenizer& tokenizer);

}  // namespace quantspec
