#include "tokenizer/vocabulary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/model_proto.h"
#include "tokenizer/named_pre_tokenizer.h"
#include "tokenizer/sentencepiece_fields.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/vocabulary_check.h"

namespace quantspec {

namespace {

using namespace sentencepiece_fields;

TokenId num_tokens(const Vocabulary& vocabulary) {
  return static_cast<TokenId>(vocabulary.tokens.size());
}

// Tokens that are found in a text before it is cut into words, of `types`.
std::vector<AddedToken> added_tokens(const Vocabulary& vocabulary,
                                     std::initializer_list<int> types) {
  std::vector<AddedToken> tokens;
  std::size_t bytes = 0;
  for (TokenId id = 0; id < num_tokens(vocabulary); ++id) {
    const std::string_view text = vocabulary.tokens[id];
    const int type = vocabulary.types[id];
    if (text.empty() || std::ranges::find(types, type) == types.end()) continue;
    bytes += text.size();
    tokens.push_back({.id = id, .content = std::string(text), .special = type != kUserDefined});
    if (bytes > kMaxAddedBytes) {
      key_of(vocabulary, "tokens")
          .unsupported(fmt::format("{} bytes of control and user-defined tokens", bytes),
                       fmt::format("{}", kMaxAddedBytes));
    }
  }
  return tokens;
}

// Whether `key`, or without it `otherwise`, has texts get the token `id`, which must be there then.
bool adds(const Vocabulary& vocabulary, std::string_view which, std::optional<bool> key,
          bool otherwise, std::optional<TokenId> id) {
  const bool adds = key.value_or(otherwise);
  if (adds && !id) {
    key_of(vocabulary, fmt::format("{}_token_id", which))
        .corrupt(fmt::format("is missing, but texts are to get the token; add_{}_token false works",
                             which));
  }
  return adds;
}

// --- llama ---------------------------------------------------------------------------------------

// What is unknown. NOTE: converters make a control token of "<unk>" where a tokenizer_config.json
// lists it, so that its type may be lost.
TokenId unknown_token(const Vocabulary& vocabulary) {
  const JsonField types = key_of(vocabulary, "token_type");
  const auto& all = vocabulary.types;
  const auto first = std::ranges::find(all, int{kUnknown});
  if (first != all.end()) {
    if (std::find(first + 1, all.end(), int{kUnknown}) != all.end()) {
      types.corrupt("has two unknown tokens (type 2); one works");
    }
    return static_cast<TokenId>(first - all.begin());
  }
  if (vocabulary.unknown) return *vocabulary.unknown;
  const auto named = std::ranges::find(vocabulary.tokens, "<unk>");
  if (named == vocabulary.tokens.end()) types.corrupt("has no unknown token (type 2)");
  return static_cast<TokenId>(named - vocabulary.tokens.begin());
}

// The library wants a token for each byte, or none for any.
void check_byte_tokens(const Vocabulary& vocabulary) {
  const JsonField tokens = key_of(vocabulary, "tokens");
  int count = 0;
  for (TokenId id = 0; id < num_tokens(vocabulary); ++id) {
    if (vocabulary.types[id] != kByte) continue;
    const std::string_view token = vocabulary.tokens[id];
    const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
                         token.substr(3, 2).find_first_not_of("0123456789ABCDEF") == token.npos;
    if (!is_byte) {
      tokens.corrupt(
          fmt::format("[{}] is a byte (type 6), but {} is not <0x00> to <0xFF>", id, shown(token)));
    }
    ++count;
  }
  if (count != 0 && count != 256) {
    tokens.corrupt(fmt::format("has {} bytes (type 6); 256 or none work", count));
  }
}

// NOTE: the tokenizer of Phi-3 swallows the white space after its special tokens, which no key
// says. Source: llama.cpp, src/llama-vocab.cpp, which goes by the name, too.
void strip_after_tokens(const Vocabulary& vocabulary, std::vector<AddedToken>& tokens) {
  std::string name = vocabulary.name;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.find("phi-3") == name.npos && name.find("phi3") == name.npos) return;
  for (AddedToken& token : tokens) {
    const std::string& text = token.content;
    token.rstrip = text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
  }
}

std::unique_ptr<Tokenizer> make_llama(const Vocabulary& vocabulary) {
  check_byte_tokens(vocabulary);
  const TokenId unknown = unknown_token(vocabulary);
  TokenizerConfig config;
  config.adds_bos = adds(vocabulary, "bos", vocabulary.add_bos, true, vocabulary.bos);
  config.adds_eos = adds(vocabulary, "eos", vocabulary.add_eos, false, vocabulary.eos);
  if (vocabulary.bos) config.bos = piece_text(vocabulary, *vocabulary.bos);
  if (vocabulary.eos) config.eos = piece_text(vocabulary, *vocabulary.eos);
  config.legacy = true;
  config.added_tokens = added_tokens(vocabulary, {kControl});
  std::erase_if(config.added_tokens, [&](const AddedToken& token) { return token.id == unknown; });
  strip_after_tokens(vocabulary, config.added_tokens);
  return make_sentencepiece_tokenizer(model_proto(vocabulary, unknown), vocabulary.source, config);
}

// --- gpt2 ----------------------------------------------------------------------------------------

const NamedPreTokenizer& pre_tokenizer_of(const Vocabulary& vocabulary) {
  const JsonField key = key_of(vocabulary, "pre");
  const std::string names = fmt::format("{}", fmt::join(pre_tokenizer_names(), ", "));
  if (vocabulary.pre.empty()) {
    key.unsupported("a gpt2 vocabulary without it, which other programs cut into wrong words,",
                    names);
  }
  const NamedPreTokenizer* found = find_pre_tokenizer(vocabulary.pre);
  if (found == nullptr) {
    key.unsupported(fmt::format("the pre-tokenizer {}", shown(vocabulary.pre)), names);
  }
  return *found;
}

BpeParts parts_of(const Vocabulary& vocabulary, const NamedPreTokenizer& rules) {
  const std::string place = "tokenizer.ggml.pre";
  const Json normalizer = rules.normalizer();
  const Json pre_tokenizer = rules.pre_tokenizer();
  const Json decoder = {{"type", "ByteLevel"}};
  const auto field = [&](const Json& json) {
    return json.is_null() ? std::nullopt : std::optional(JsonField(json, vocabulary.source, place));
  };
  return {.normalizer = Normalizer(field(normalizer)),
          .pre_tokenizer = PreTokenizer(field(pre_tokenizer)),
          .model = std::make_unique<BpeModel>(vocabulary, rules.ignores_merges),
          .decoder = TokenDecoder(field(decoder), vocabulary.source)};
}

std::unique_ptr<Tokenizer> make_gpt2(const Vocabulary& vocabulary) {
  const NamedPreTokenizer& rules = pre_tokenizer_of(vocabulary);
  if (std::ranges::count(vocabulary.types, int{kByte}) > 0) {
    key_of(vocabulary, "token_type")
        .corrupt("has bytes (type 6), which a gpt2 vocabulary writes as letters");
  }
  auto tokenizer = std::make_unique<BpeTokenizer>(parts_of(vocabulary, rules));
  for (AddedToken& token : added_tokens(vocabulary, {kUnknown, kControl, kUserDefined})) {
    tokenizer->add(std::move(token));
  }
  SpecialTokens special{.bos = vocabulary.bos, .eos = vocabulary.eos};
  if (adds(vocabulary, "bos", vocabulary.add_bos, rules.adds_bos, special.bos)) {
    special.prefix = {*special.bos};
  }
  if (adds(vocabulary, "eos", vocabulary.add_eos, false, special.eos)) {
    special.suffix = {*special.eos};
  }
  tokenizer->finish(std::move(special));
  return tokenizer;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const Vocabulary& vocabulary) {
  const bool is_llama = vocabulary.model == "llama";
  if (!is_llama && vocabulary.model != "gpt2") {
    key_of(vocabulary, "model")
        .unsupported(fmt::format("the tokenizer {}", shown(vocabulary.model)), "llama, gpt2");
  }
  check_vocabulary(vocabulary);
  return is_llama ? make_llama(vocabulary) : make_gpt2(vocabulary);
}

}  // namespace quantspec
