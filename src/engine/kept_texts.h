// Texts of requests that have ended, prompts with their answers, in which the next requests of the
// same owner look drafts up: who asks for the same kind of thing again gets the same kind of
// answer. What is kept changes no token of any answer (section 4 of docs/design.md).
//
// Nobody sees another's texts: owner and salt are both the same.
//
// A text takes 4 bytes a token and some 200, of the host's memory. Each sequence that runs has up
// to 136 bytes a token besides, two copies and a suffix automaton (LookupDrafts), which reads them
// a part between two rounds, so that others do not wait. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/request_id.h"
#include "base/token.h"

namespace quantspec {

struct KeptText {
  std::string salt;
  std::uint64_t seed;  // by which it was drawn
  std::vector<TokenId> tokens;
};

class KeptTexts {
 public:
  static constexpr std::size_t kMostOwners =
      64;  // one more takes the place of who came longest ago
  static constexpr std::size_t kLeastTokens = 16;  // of a text: from less there is little to copy
  static constexpr std::size_t kKnown = 32;        // tokens find a place; more is no surer

  // So many tokens of each owner; 0: nothing is kept.
  explicit KeptTexts(std::size_t tokens) : most_tokens_(tokens) {}

  // The oldest tokens make room. What older texts begin alike with, this one has: they keep what
  // comes then, with kKnown tokens before it, and nothing where this one goes on with them, as the
  // next turn of a conversation does.
  void keep(OwnerId owner, KeptText text);

  // All of them, the oldest first, with DecodingOptions::kBetweenTexts between; but for those of
  // one seed, for who draws by it and is to propose nothing that follows from his own draws.
  std::vector<TokenId> find(OwnerId owner, std::string_view salt,
                            std::optional<std::uint64_t> but_of_seed = {});

 private:
  struct Owner {
    OwnerId id;
    std::vector<KeptText> texts;  // the oldest first
  };
  // Makes it the last one; null: nothing is kept of it.
  Owner* use(OwnerId owner);

  std::size_t most_tokens_;
  std::vector<Owner> owners_;  // by when they came last
};

}  // namespace quantspec
