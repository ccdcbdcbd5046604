#include "speculative/lookup_drafts.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {
namespace {

// Lengths up to which buckets reach; the last has no end.
constexpr std::array kUpTo = {1, 2, 3, 4, 6, 8, 12, 16, 32};
// What books and code copy of themselves, about; kPriorWeight trials' worth.
constexpr std::array kPrior = {0.05f, 0.15f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 0.95f};
constexpr float kPriorWeight = 4;
constexpr float kKeep = 0.98f;           // of the evidence, from one trial to the next
constexpr float kLeastSurvival = 0.05f;  // of a token that is worth a row

}  // namespace

int LookupDrafts::bucket(int length) {
  return static_cast<int>(std::ranges::lower_bound(kUpTo, length) - kUpTo.begin());
}

float LookupDrafts::share(int length) const {
  const int of = bucket(length);
  return counts_[of].share(kPrior[of], kPriorWeight);
}

void LookupDrafts::truncate(std::size_t count) {
  learned_ = std::min(learned_, count);
  text_ = {};
  if (automaton_.size() > count) automaton_.clear();
}

bool LookupDrafts::follow(std::span<const TokenId> text, std::size_t first_chosen) {
  static_assert(kPrior.size() == kBuckets && kUpTo.size() + 1 == kBuckets);
  if (automaton_.size() > text.size()) return true;  // it is a part of what is known
  text_ = text;
  const std::size_t end = std::min(text.size(), automaton_.size() + kMostFollowed);
  for (std::size_t i = automaton_.size(); i < end; ++i) {
    const SuffixAutomaton::Match match = automaton_.match();
    if (i >= std::max(first_chosen, learned_) && match.length > 0) {
      AcceptanceCounts::Count& of = counts_[bucket(match.length)];
      const bool right = text[match.end] == text[i];
      of = {of.accepted * kKeep + static_cast<float>(right), of.trials * kKeep + 1};
    }
    automaton_.append(text[i]);
  }
  learned_ = std::max(learned_, end);
  return end == text.size();
}

FoundTokens LookupDrafts::find(int most) {
  check(most >= 0 && most <= kMaxDraftLen, "drafts are within kMaxDraftLen");
  const SuffixAutomaton::Match match = automaton_.match();
  if (match.length == 0 || automaton_.size() != text_.size()) return {};
  // The text may end inside what follows: a text that repeats itself goes on as it did.
  const int period = static_cast<int>(text_.size()) - match.end;
  int count = 0;
  for (float survival = 1; count < most; ++count) {
    survival *= share(match.length + count);
    if (survival < kLeastSurvival) break;
    survival_[count] = survival;
    tokens_[count] = count < period ? text_[match.end + count] : tokens_[count - period];
  }
  std::fill(survival_.begin() + count, survival_.end(), 0.0f);
  return {std::span<const TokenId>(tokens_).first(count), &survival_};
}

}  // namespace quantspec
