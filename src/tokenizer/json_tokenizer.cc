#include "tokenizer/json_tokenizer.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/json_field.h"
#include "tokenizer/steps.h"

namespace quantspec {

namespace {

// Ids around a text; known files have one or two.
constexpr std::size_t kMaxTemplate = 1024;

BpeParts read_parts(const JsonField& root, std::string_view file) {
  return {.normalizer = Normalizer(root.find("normalizer")),
          .pre_tokenizer = PreTokenizer(root.find("pre_tokenizer")),
          .model = std::make_unique<BpeModel>(root.at("model")),
          .decoder = TokenDecoder(root.find("decoder"), file)};
}

void read_added_tokens(const JsonField& field, BpeTokenizer& tokenizer) {
  for (const JsonField& element : field.elements()) {
    AddedToken token = read_added_token(element, element.at("id").integer());
    if (token.content.empty()) continue;
    if (const auto known = tokenizer.find(token.content); known && *known != token.id) {
      element.corrupt(fmt::format("gives {} the id {}, which is {} elsewhere in the file",
                                  shown(token.content), token.id, *known));
    }
    const std::size_t bytes = tokenizer.add(std::move(token));
    if (bytes > kMaxAddedBytes) {
      field.unsupported(fmt::format("{} bytes of added tokens", bytes),
                        fmt::format("{}", kMaxAddedBytes));
    }
  }
}

void read_template(const JsonField& field, const BpeTokenizer& tokenizer, SpecialTokens& special) {
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen_text = false;
  for (const JsonField& element : field.at("single").elements()) {
    if (element.find("Sequence")) {
      if (seen_text) element.unsupported("a text twice in a template", "once");
      seen_text = true;
      continue;
    }
    const JsonField name = element.at("SpecialToken").at("id");
    const JsonField token = field.at("special_tokens").at(name.text());
    for (const JsonField& id : token.at("ids").elements()) {
      if (id.integer() < 0 || id.integer() >= tokenizer.vocab_size()) id.corrupt("is no token id");
      (seen_text ? after : before).push_back(static_cast<TokenId>(id.integer()));
      if (special.prefix.size() + special.suffix.size() + before.size() + after.size() >
          kMaxTemplate) {
        element.unsupported("one more token around a text", fmt::format("{}", kMaxTemplate));
      }
    }
  }
  if (!seen_text) field.at("single").corrupt("has no place for the text");
  special.prefix.insert(special.prefix.begin(), before.begin(), before.end());
  special.suffix.insert(special.suffix.end(), after.begin(), after.end());
}

void read_post_processor(const JsonField& field, const BpeTokenizer& tokenizer,
                         SpecialTokens& special) {
  for (const JsonField& step : steps_of(field, "processors")) {
    const std::string& type = step.at("type").text();
    if (type == "TemplateProcessing") {
      read_template(step, tokenizer, special);
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets, which nobody asks for here
      step.unsupported(fmt::format("post_processor {}", shown(type)),
                       "TemplateProcessing, ByteLevel, Sequence");
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, std::string_view file,
                                               const TokenizerConfig& config) {
  const Json json = parse_json(text, file);
  const JsonField root(json, file);
  auto tokenizer = std::make_unique<BpeTokenizer>(read_parts(root, file));
  // NOTE: "truncation" and "padding" are settings of the last program that used the file; Hugging
  // Face's transformers resets them, and so they are not read.
  if (const auto added = root.find("added_tokens")) read_added_tokens(*added, *tokenizer);
  SpecialTokens special;
  if (const auto processor = root.find("post_processor")) {
    read_post_processor(*processor, *tokenizer, special);
  }
  if (config.bos) special.bos = tokenizer->find(*config.bos);
  if (config.eos) special.eos = tokenizer->find(*config.eos);
  tokenizer->finish(std::move(special));
  return tokenizer;
}

}  // namespace quantspec
