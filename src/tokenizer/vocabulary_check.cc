#include "tokenizer/vocabulary_check.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"

namespace quantspec {

namespace {

constexpr std::size_t kMaxTokenBytes = std::size_t{1} << 16;  // known tokens: up to 256
constexpr int kFirstType = 1;
constexpr int kLastType = 6;

// An array beside the tokens has an element for each of them.
void check_length(const JsonField& key, std::size_t length, std::size_t tokens) {
  if (length == 0) key.corrupt("is missing; it says something about each token");
  if (length != tokens) {
    key.corrupt(fmt::format("has {} elements; there are {} tokens", length, tokens));
  }
}

void check_counts(const Vocabulary& vocabulary) {
  const JsonField tokens = key_of(vocabulary, "tokens");
  const std::size_t count = vocabulary.tokens.size();
  if (count == 0) tokens.corrupt("is missing or empty");
  if (count > kMaxTokenId) {
    tokens.unsupported(fmt::format("{} tokens", count), fmt::format("{}", kMaxTokenId));
  }
  check_length(key_of(vocabulary, "token_type"), vocabulary.types.size(), count);
  if (vocabulary.model == "llama" || !vocabulary.scores.empty()) {
    check_length(key_of(vocabulary, "scores"), vocabulary.scores.size(), count);
  }
}

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = next_utf8(bytes);
    if (step.state != Utf8State::kValid) return false;
    bytes.remove_prefix(step.length);
  }
  return true;
}

// NOTE: a token that is no UTF-8 would be found inside of characters, and leave halves of them.
void check_token(const JsonField& tokens, std::size_t id, std::string_view token) {
  if (token.size() > kMaxTokenBytes) {
    tokens.unsupported(fmt::format("token {} of {} bytes", id, token.size()),
                       fmt::format("{} bytes", kMaxTokenBytes));
  }
  if (!is_text(token)) tokens.corrupt(fmt::format("[{}] is no UTF-8: {}", id, shown(token)));
}

// NOTE: sorted by hashes, which takes a fifth of the time of a hash table of 256,000 tokens.
void check_no_token_twice(const JsonField& tokens, const std::vector<std::string_view>& texts) {
  struct Token {
    std::size_t hash;
    std::size_t id;
  };
  std::vector<Token> sorted;
  sorted.reserve(texts.size());
  for (std::size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty()) sorted.push_back({TableHash()(texts[id]), id});
  }
  std::ranges::sort(sorted, [&](const Token& a, const Token& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return std::tie(texts[a.id], a.id) < std::tie(texts[b.id], b.id);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const auto [before, token] = std::pair(sorted[i - 1], sorted[i]);
    if (before.hash != token.hash || texts[before.id] != texts[token.id]) continue;
    tokens.corrupt(
        fmt::format("has {} twice, as {} and {}", shown(texts[token.id]), before.id, token.id));
  }
}

void check_tokens(const Vocabulary& vocabulary) {
  const JsonField tokens = key_of(vocabulary, "tokens");
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    check_token(tokens, id, vocabulary.tokens[id]);
  }
  check_no_token_twice(tokens, vocabulary.tokens);
}

void check_types(const Vocabulary& vocabulary) {
  const JsonField types = key_of(vocabulary, "token_type");
  for (std::size_t id = 0; id < vocabulary.types.size(); ++id) {
    const int type = vocabulary.types[id];
    if (type < kFirstType || type > kLastType) {
      types.corrupt(fmt::format("[{}] is {}; types are {} to {}", id, type, kFirstType, kLastType));
    }
  }
}

}  // namespace

JsonField key_of(const Vocabulary& vocabulary, std::string_view key) {
  static const Json no_value;
  return {no_value, vocabulary.source, fmt::format("tokenizer.ggml.{}", key)};
}

void check_token_ids(const Vocabulary& vocabulary) {
  const auto count = vocabulary.tokens.size();
  for (const auto& [key, id] : {std::pair{"bos_token_id", vocabulary.bos},
                                {"eos_token_id", vocabulary.eos},
                                {"eot_token_id", vocabulary.eot},
                                {"eom_token_id", vocabulary.eom},
                                {"unknown_token_id", vocabulary.unknown},
                                {"padding_token_id", vocabulary.padding}}) {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= count)) {
      key_of(vocabulary, key).corrupt(fmt::format("is {}; there are {} tokens", *id, count));
    }
  }
}

void check_vocabulary(const Vocabulary& vocabulary) {
  check_counts(vocabulary);
  check_types(vocabulary);
  check_tokens(vocabulary);
  check_token_ids(vocabulary);
}

}  // namespace quantspec
