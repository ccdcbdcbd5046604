#include "tokenizer/json_tokenizer.h"

#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/json_field.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/steps.h"
#include "tokenizer/token_decoder.h"

namespace quantspec {

namespace {

// Words longer than this rarely come twice.
constexpr std::size_t kMaxCachedWord = 256;

// Ids around a text; known files have one or two.
constexpr std::size_t kMaxTemplate = 1024;

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(const JsonField& root, std::string_view file, const TokenizerConfig& config)
      : normalizer_(root.find("normalizer")),
        pre_tokenizer_(root.find("pre_tokenizer")),
        model_(root.at("model")),
        decoder_(root.find("decoder"), file),
        tokens_(model_.tokens()),
        is_special_(tokens_.size(), false) {
    // NOTE: "truncation" and "padding" are settings of the last program that used the file; Hugging
    // Face's transformers resets them, and so they are not read.
    if (const auto added = root.find("added_tokens")) read_added_tokens(*added);
    if (const auto processor = root.find("post_processor")) read_post_processor(*processor);
    if (config.bos) bos_ = find(*config.bos);
    if (config.eos) eos_ = find(*config.eos);
  }

  std::vector<TokenId> encode(std::string_view text, bool add_special) const override;

  using Tokenizer::token_bytes;
  std::string token_bytes(TokenId id, bool& at_start) const override {
    if (id < 0 || id >= vocab_size() || is_special_[id] || tokens_[id].empty()) return {};
    return decoder_.decode(tokens_[id], at_start);
  }
  int vocab_size() const override { return static_cast<int>(tokens_.size()); }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }
  bool is_special(TokenId id) const override {
    return id >= 0 && id < vocab_size() && is_special_[id];
  }
  // NOTE: for a broken run of byte tokens Hugging Face's ByteFallback writes U+FFFD for every byte
  // of the run, valid characters included; that could not be streamed. SentencePiece, whose models
  // these are, writes one per broken byte, and so does this.
  bool marks_every_bad_byte() const override { return !decoder_.is_byte_level(); }

 private:
  // What comes and goes with one call of encode().
  struct Encoding {
    explicit Encoding(std::size_t bytes) : limit(bytes) {}

    WorkLimit limit;
    std::unordered_map<std::string, std::vector<TokenId>, TableHash, std::equal_to<>> cache;
    std::vector<TokenId> ids;
  };

  void read_added_tokens(const JsonField& field);
  void read_post_processor(const JsonField& field);
  void read_template(const JsonField& field);
  std::optional<TokenId> find(const std::string& token) const;
  void encode_plain(std::string_view text, bool at_start, Encoding& encoding) const;
  void encode_word(const std::string& word, Encoding& encoding) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  TokenDecoder decoder_;
  std::vector<std::string> tokens_;  // by id, as the decoder reads them; with the added ones
  std::vector<bool> is_special_;     // by id
  std::unordered_map<std::string, TokenId, TableHash, std::equal_to<>> added_;
  AddedTokenMatcher raw_matcher_;         // before the normalizer
  AddedTokenMatcher normalized_matcher_;  // after it
  std::vector<TokenId> prefix_;           // what add_special puts before a text
  std::vector<TokenId> suffix_;           // and after it
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
};

std::optional<TokenId> JsonTokenizer::find(const std::string& token) const {
  const auto added = added_.find(token);
  return added != added_.end() ? std::optional(added->second) : model_.find(token);
}

void JsonTokenizer::read_added_tokens(const JsonField& field) {
  std::vector<AddedTokenMatcher::Pattern> raw;
  std::vector<AddedTokenMatcher::Pattern> normalized;
  std::size_t bytes = 0;  // of all patterns
  for (const JsonField& element : field.elements()) {
    AddedToken token = read_added_token(element, element.at("id").integer());
    if (token.content.empty()) continue;
    if (const auto known = find(token.content); known && *known != token.id) {
      element.corrupt(fmt::format("gives {} the id {}, which is {} elsewhere in the file",
                                  shown(token.content), token.id, *known));
    }
    if (token.id >= vocab_size()) {
      tokens_.resize(token.id + 1);
      is_special_.resize(token.id + 1, false);
    }
    WorkLimit limit(token.content.size());
    const std::string pattern =
        token.normalized ? normalizer_.apply(token.content, limit) : token.content;
    bytes += pattern.size();
    if (bytes > kMaxAddedBytes) {
      field.unsupported(fmt::format("{} bytes of added tokens", bytes),
                        fmt::format("{}", kMaxAddedBytes));
    }
    tokens_[token.id] = pattern;
    is_special_[token.id] = token.special;
    added_[token.content] = token.id;
    (token.normalized ? normalized : raw).push_back({pattern, std::move(token)});
  }
  raw_matcher_ = AddedTokenMatcher(std::move(raw));
  normalized_matcher_ = AddedTokenMatcher(std::move(normalized));
}

void JsonTokenizer::read_post_processor(const JsonField& field) {
  for (const JsonField& step : steps_of(field, "processors")) {
    const std::string& type = step.at("type").text();
    if (type == "TemplateProcessing") {
      read_template(step);
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets, which nobody asks for here
      step.unsupported(fmt::format("post_processor {}", shown(type)),
                       "TemplateProcessing, ByteLevel, Sequence");
    }
  }
}

void JsonTokenizer::read_template(const JsonField& field) {
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
      if (id.integer() < 0 || id.integer() >= vocab_size()) id.corrupt("is no token id");
      (seen_text ? after : before).push_back(static_cast<TokenId>(id.integer()));
      if (prefix_.size() + suffix_.size() + before.size() + after.size() > kMaxTemplate) {
        element.unsupported("one more token around a text", fmt::format("{}", kMaxTemplate));
      }
    }
  }
  if (!seen_text) field.at("single").corrupt("has no place for the text");
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  suffix_.insert(suffix_.end(), after.begin(), after.end());
}

std::vector<TokenId> JsonTokenizer::encode(std::string_view text, bool add_special) const {
  const std::string valid = repair_utf8(text);
  Encoding encoding(valid.size());
  std::vector<TokenId>& ids = encoding.ids;
  if (add_special) ids = prefix_;
  for (const auto& piece : raw_matcher_.split(valid)) {
    if (piece.id) {
      ids.push_back(*piece.id);
    } else {
      encode_plain(piece.text, piece.text.data() == valid.data(), encoding);
    }
  }
  if (add_special) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return std::move(ids);
}

void JsonTokenizer::encode_plain(std::string_view text, bool at_start, Encoding& encoding) const {
  const std::string normal = normalizer_.apply(std::string(text), encoding.limit);
  for (const auto& piece : normalized_matcher_.split(normal)) {
    if (piece.id) {
      encoding.ids.push_back(*piece.id);
      continue;
    }
    const bool first = at_start && piece.text.data() == normal.data();
    for (const Word& word : pre_tokenizer_.cut({std::string(piece.text), first}, encoding.limit)) {
      encode_word(word.text, encoding);
    }
  }
}

void JsonTokenizer::encode_word(const std::string& word, Encoding& encoding) const {
  auto& [limit, cache, ids] = encoding;
  if (word.size() > kMaxCachedWord) return model_.encode(word, ids);
  const auto [entry, is_new] = cache.try_emplace(word);
  if (is_new) model_.encode(word, entry->second);
  ids.insert(ids.end(), entry->second.begin(), entry->second.end());
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, std::string_view file,
                                               const TokenizerConfig& config) {
  const Json json = parse_json(text, file);
  return std::make_unique<JsonTokenizer>(JsonField(json, file), file, config);
}

}  // namespace quantspec
