#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "tokenizer/sentencepiece_fields.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/vocabulary_check.h"

namespace quantspec {

namespace {

// Texts of control tokens that end what a model says: a turn, a call of a tool, a text, a file.
// Source: the list of llama.cpp, src/llama-vocab.cpp.
constexpr std::string_view kEnds[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "[e~[",
    // What pads or parts files of code.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

// By text.
using Ends = std::map<std::string_view, TokenId>;

Ends ends_by_text(const Vocabulary& vocabulary) {
  Ends ends;
  const std::size_t count = std::min(vocabulary.tokens.size(), vocabulary.types.size());
  for (std::size_t id = 0; id < count; ++id) {
    if (vocabulary.types[id] != sentencepiece_fields::kControl) continue;
    const std::string_view text = vocabulary.tokens[id];
    if (std::ranges::find(kEnds, text) != std::end(kEnds)) ends[text] = static_cast<TokenId>(id);
  }
  return ends;
}

// Beside certain others a text is no end: "<|end|>" parts messages where "<|return|>" ends the last
// one (gpt-oss, Solar Open), and Gemma 4 has a "</s>" that it never says.
void drop_others(Ends& ends) {
  const bool has_call = ends.contains("<|call|>") || ends.contains("<|calls|>");
  if (has_call && (ends.contains("<|return|>") || ends.contains("<|flush|>"))) {
    ends.erase("<|end|>");
  }
  if (ends.contains("<|tool_response>")) ends.erase("</s>");
}

}  // namespace

std::vector<TokenId> end_of_generation(const Vocabulary& vocabulary) {
  check_token_ids(vocabulary);
  Ends ends = ends_by_text(vocabulary);
  drop_others(ends);
  std::set<TokenId> ids;
  for (const auto& [text, id] : ends) ids.insert(id);
  for (const auto& id : {vocabulary.eos, vocabulary.eot, vocabulary.eom}) {
    if (id) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

}  // namespace quantspec
