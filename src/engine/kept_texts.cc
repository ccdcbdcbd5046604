#include "engine/kept_texts.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "speculative/speculative.h"

namespace quantspec {

namespace {

// Gives the memory back, too.
void drop_first(std::vector<TokenId>& tokens, std::size_t count) {
  if (count > 0)
    tokens = std::vector(tokens.begin() + static_cast<std::ptrdiff_t>(count), tokens.end());
}

}  // namespace

KeptTexts::Owner* KeptTexts::use(OwnerId owner) {
  const auto found = std::ranges::find(owners_, owner, &Owner::id);
  if (found == owners_.end()) return nullptr;
  std::rotate(found, found + 1, owners_.end());
  return &owners_.back();
}

void KeptTexts::keep(OwnerId owner, KeptText text) {
  if (std::min(most_tokens_, text.tokens.size()) < kLeastTokens) return;
  Owner* of = use(owner);
  if (of == nullptr) {
    if (owners_.size() == kMostOwners) owners_.erase(owners_.begin());
    of = &owners_.emplace_back(Owner{owner, {}});
  }
  for (KeptText& old : of->texts) {
    if (old.salt != text.salt) continue;
    const auto end = std::ranges::mismatch(old.tokens, text.tokens).in1;
    const auto alike = static_cast<std::size_t>(end - old.tokens.begin());
    drop_first(old.tokens, end == old.tokens.end() ? alike : alike - std::min(alike, kKnown));
  }
  of->texts.push_back(std::move(text));
  std::size_t room = most_tokens_;
  for (KeptText& one : std::views::reverse(of->texts)) {
    drop_first(one.tokens, one.tokens.size() - std::min(one.tokens.size(), room));
    room -= one.tokens.size();
  }
  std::erase_if(of->texts, [](const KeptText& one) { return one.tokens.size() < kLeastTokens; });
}

std::vector<TokenId> KeptTexts::find(OwnerId owner, std::string_view salt,
                                     std::optional<std::uint64_t> but_of_seed) {
  std::vector<TokenId> all;
  const Owner* of = use(owner);
  if (of == nullptr) return all;
  for (const KeptText& one : of->texts) {
    if (one.salt != salt || one.seed == but_of_seed) continue;
    if (!all.empty()) all.push_back(DecodingOptions::kBetweenTexts);
    all.insert(all.end(), one.tokens.begin(), one.tokens.end());
  }
  return all;
}

}  // namespace quantspec
