#include "tokenizer/bpe_model.h"

#include <queue>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/sentencepiece_fields.h"
#include "tokenizer/vocabulary_check.h"

namespace quantspec {

namespace {

// A token of the word being merged, in a doubly linked list.
struct Symbol {
  TokenId id;
  std::int32_t previous;  // index, -1 at the ends
  std::int32_t next;
};

constexpr std::size_t kMaxMerges = std::size_t{1} << 24;  // of a vocabulary; known: half a million

constexpr TokenId kMerged = -1;  // the id of a symbol that became part of the one before it

struct Candidate {
  std::int32_t rank;
  std::int32_t at;  // index of the left symbol
  TokenId result;

  // The lowest rank first, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

void refuse_affix(const JsonField& field, std::string_view key) {
  if (!field.text_or(key, "").empty()) field.at(key).unsupported(key, "none (null)");
}

}  // namespace

BpeModel::BpeModel(const JsonField& field) {
  const std::string type = field.text_or("type", "BPE");
  if (type != "BPE") field.unsupported(fmt::format("model type {}", shown(type)), "BPE");
  refuse_affix(field, "continuing_subword_prefix");
  refuse_affix(field, "end_of_word_suffix");
  if (const auto dropout = field.find("dropout"); dropout && dropout->json() != 0) {
    dropout->unsupported("dropout", "none (null)");
  }
  read_vocabulary(field.at("vocab"));
  read_merges(field.at("merges"));
  if (field.boolean_or("byte_fallback", false)) read_bytes(field);
  if (const auto unknown = field.find("unk_token")) {
    unknown_ = find(unknown->text());
    if (!unknown_) unknown->corrupt("is not in the vocabulary");
  }
  fuses_unknown_ = field.boolean_or("fuse_unk", false);
  ignores_merges_ = field.boolean_or("ignore_merges", false);
}

BpeModel::BpeModel(const Vocabulary& vocabulary, bool ignores_merges)
    : ignores_merges_(ignores_merges) {
  read_vocabulary(vocabulary);
  read_merges(vocabulary);
}

void BpeModel::read_vocabulary(const Vocabulary& vocabulary) {
  tokens_.resize(vocabulary.tokens.size());
  ids_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    const bool is_unused = vocabulary.types[id] == sentencepiece_fields::kUnused;
    if (is_unused || vocabulary.tokens[id].empty()) continue;
    tokens_[id] = vocabulary.tokens[id];
    ids_.emplace(tokens_[id], static_cast<TokenId>(id));
  }
}

void BpeModel::read_merges(const Vocabulary& vocabulary) {
  const JsonField place = key_of(vocabulary, "merges");
  const std::size_t count = vocabulary.merges.size();
  if (count > kMaxMerges) {
    place.unsupported(fmt::format("{} merges", count), fmt::format("{}", kMaxMerges));
  }
  merges_.reserve(count);
  for (std::size_t rank = 0; rank < count; ++rank) {
    const std::string_view both = vocabulary.merges[rank];
    const std::size_t space = both.find(' ', 1);  // a token may be a space, but none is empty
    if (space == both.npos) {
      place.corrupt(fmt::format("[{}] is not two tokens with a space between", rank));
    }
    read_merge(both.substr(0, space), both.substr(space + 1), static_cast<std::int32_t>(rank),
               place);
  }
}

void BpeModel::read_vocabulary(const JsonField& vocabulary) {
  if (!vocabulary.json().is_object()) vocabulary.corrupt("is not an object");
  TokenId last = -1;
  for (const auto& [token, id] : vocabulary.json().items()) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      vocabulary.corrupt(fmt::format("gives {} an id that is not an integer from 0 to {}",
                                     shown(token), kMaxTokenId));
    }
    last = std::max(last, id.get<TokenId>());
  }
  tokens_.resize(last + 1);
  ids_.reserve(vocabulary.json().size());
  for (const auto& [token, id] : vocabulary.json().items()) {
    std::string& place = tokens_[id.get<TokenId>()];
    if (!place.empty()) {
      vocabulary.corrupt(fmt::format("gives {} and {} one id", shown(place), shown(token)));
    }
    place = token;
    ids_.emplace(place, id.get<TokenId>());
  }
}

void BpeModel::read_merges(const JsonField& merges) {
  if (!merges.json().is_array()) merges.corrupt("is not an array");
  merges_.reserve(merges.json().size());
  std::int32_t rank = 0;
  for (const Json& merge : merges.json()) {
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
        merges.corrupt(fmt::format("[{}] is not two tokens with a space between", rank));
      }
      read_merge(both.substr(0, space), both.substr(space + 1), rank, merges);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      read_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(),
                 rank, merges);
    } else {
      merges.corrupt(fmt::format("[{}] is neither \"a b\" nor [\"a\", \"b\"]", rank));
    }
    ++rank;
  }
}

void BpeModel::read_merge(std::string_view left, std::string_view right, std::int32_t rank,
                          const JsonField& merges) {
  const auto id_of = [&](std::string_view token) {
    const auto id = find(token);
    if (!id) merges.corrupt(fmt::format("[{}] names {}, which is no token", rank, shown(token)));
    return *id;
  };
  const TokenId result = id_of(std::string(left) + std::string(right));
  const std::uint64_t pair = std::uint64_t(id_of(left)) << 32 | std::uint64_t(id_of(right));
  merges_.insert_or_assign(pair, Merge{rank, result});
}

void BpeModel::read_bytes(const JsonField& field) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = find(fmt::format("<0x{:02X}>", byte));
  }
  if (!byte_tokens_[0] && !field.find("unk_token")) {
    field.corrupt("has byte_fallback but neither byte tokens nor an unk_token");
  }
}

std::optional<TokenId> BpeModel::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const BpeModel::Merge* BpeModel::find_merge(TokenId left, TokenId right) const {
  const auto found = merges_.find(std::uint64_t(left) << 32 | std::uint64_t(right));
  return found == merges_.end() ? nullptr : &found->second;
}

bool BpeModel::append_bytes(std::string_view character, std::vector<TokenId>& ids) const {
  std::array<TokenId, 4> bytes;
  for (std::size_t i = 0; i < character.size(); ++i) {
    const auto id = byte_tokens_[static_cast<unsigned char>(character[i])];
    if (!id) return false;
    bytes[i] = *id;
  }
  ids.insert(ids.end(), bytes.begin(), bytes.begin() + character.size());
  return true;
}

// The word before any merge.
// NOTE: as in Hugging Face's library, an unknown token comes after the byte tokens that follow it.
std::vector<TokenId> BpeModel::characters(std::string_view word) const {
  std::vector<TokenId> ids;
  ids.reserve(word.size());
  bool pending_unknown = false;
  while (!word.empty()) {
    const std::string_view character = word.substr(0, next_utf8(word).length);
    word.remove_prefix(character.size());
    if (const auto id = find(character)) {
      if (pending_unknown) ids.push_back(*unknown_);
      pending_unknown = false;
      ids.push_back(*id);
    } else if (!append_bytes(character, ids) && unknown_) {
      if (pending_unknown && !fuses_unknown_) ids.push_back(*unknown_);
      pending_unknown = true;
    }
  }
  if (pending_unknown) ids.push_back(*unknown_);
  return ids;
}

// Merges until nothing can be. The queue may hold pairs that are gone; they are skipped.
void BpeModel::merge(std::vector<TokenId>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(ids.size());
  for (const TokenId id : ids) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  symbols.back().next = -1;

  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const Merge* merge = find_merge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->result});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) consider(static_cast<std::int32_t>(i));

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.id == kMerged || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->result != best.result) continue;
    left.id = best.result;
    left.next = right.next;
    right.id = kMerged;
    if (left.next >= 0) symbols[left.next].previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  ids.clear();
  for (std::int32_t at = 0; at >= 0; at = symbols[at].next) ids.push_back(symbols[at].id);
}

void BpeModel::encode(std::string_view word, std::vector<TokenId>& ids) const {
  if (ignores_merges_) {
    if (const auto id = find(word)) return ids.push_back(*id);
  }
  std::vector<TokenId> parts = characters(word);
  if (parts.empty()) return;
  merge(parts);
  ids.insert(ids.end(), parts.begin(), parts.end());
}

}  // namespace quantspec
