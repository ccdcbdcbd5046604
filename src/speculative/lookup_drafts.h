// Drafts that no pass draws: what followed the end of the text where it was met before in it. They
// cost a verification's rows and nothing else, and are right where a text is copied: edits, quotes,
// tables, names. A reference is a text that is no part of it, but is looked up in, too.
//
// How likely they are to be accepted follows from how long a piece was met before: a token accepted
// makes the piece longer by one. The shares by length are learned from every token that the target
// chooses, whether it was drafted so or not, so that no round is spent to learn whether drafts pay.
//
// Proposals and shares are functions of tokens that were chosen before, never of what the round to
// come draws (section 3 of docs/design.md). Not thread-safe; allocates where the text outgrows what
// was reserved.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/params/limits.h"
#include "base/token.h"
#include "speculative/draft_lengths.h"
#include "speculative/suffix_automaton.h"

namespace quantspec {

class LookupDrafts {
 public:
  // So many tokens of the text, and the reference.
  void reserve(std::size_t tokens) { automaton_.reserve(tokens + before_text()); }
  // That reserve() takes, with a reference of so many tokens.
  static std::size_t bytes_for(std::size_t tokens, std::size_t reference) {
    const std::size_t before = reference == 0 ? 0 : reference + 1;
    return SuffixAutomaton::bytes_for(tokens + before) + sizeof(TokenId) * reference;
  }
  // Begins with another reference (empty: none; DecodingOptions' of several), and forgets the text.
  void refer_to(std::vector<TokenId> reference);
  const std::vector<TokenId>& reference() const { return reference_; }
  // Forget the text, or its tokens from `count` on; what was learned stays.
  void clear() { truncate(0); }
  void truncate(std::size_t count);
  // The text is this one: what it was before, and more tokens, of which those from first_chosen on
  // were chosen by the target. It outlives the next find(). Reads so many of them at most, since
  // others may wait, and returns whether that is all: if not, find() finds nothing yet.
  static constexpr std::size_t kMostFollowed = 4096;
  bool follow(std::span<const TokenId> text, std::size_t first_chosen);

  // What may come next; valid until the next call.
  // At most so many. Empty: nothing was met before that is worth a row.
  // REQUIRES: most <= kMaxDraftLen.
  FoundTokens find(int most);

  // The share of tokens that were right after pieces of so many. REQUIRES: length >= 1.
  float share(int length) const;

 private:
  static constexpr int kBuckets = 10;
  static int bucket(int length);

  // Places of the automaton are those of the reference, DecodingOptions::kBetweenTexts, the text.
  std::size_t before_text() const { return reference_.empty() ? 0 : reference_.size() + 1; }
  std::size_t end() const { return before_text() + text_.size(); }
  TokenId at(std::size_t place) const;

  std::vector<TokenId> reference_ = {};
  std::span<const TokenId> text_ = {};
  SuffixAutomaton automaton_;
  std::array<AcceptanceCounts::Count, kBuckets> counts_;  // by length
  std::size_t learned_ = 0;                               // tokens of the text
  std::array<TokenId, kMaxDraftLen> tokens_;
  SequenceAcceptance::Survival survival_;
};

}  // namespace quantspec
