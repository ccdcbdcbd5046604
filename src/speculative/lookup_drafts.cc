#include "speculative/lookup_drafts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "speculative/speculative.h"

namespace quantspec {
namespace {

constexpr TokenId kBetween = DecodingOptions::kBetweenTexts;

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

void LookupDrafts::refer_to(std::vector<TokenId> reference) {
  reference_ = std::move(reference);
  clear();
  automaton_.clear();
}

TokenId LookupDrafts::at(std::size_t place) const {
  if (place >= before_text()) return text_[place - before_text()];
  return place < reference_.size() ? reference_[place] : kBetween;
}

void LookupDrafts::truncate(std::size_t count) {
  learned_ = std::min(learned_, count);
  text_ = {};
  if (automaton_.size() > before_text() + count) automaton_.clear();
}

bool LookupDrafts::follow(std::span<const TokenId> text, std::size_t first_chosen) {
  static_assert(kPrior.size() == kBuckets && kUpTo.size() + 1 == kBuckets);
  const std::size_t before = before_text();
  if (automaton_.size() > before + text.size()) return true;  // it is a part of what is known
  text_ = text;
  const std::size_t end = std::min(this->end(), automaton_.size() + kMostFollowed);
  for (std::size_t i = automaton_.size(); i < end; ++i) {
    const SuffixAutomaton::Match match = automaton_.match();
    const bool proposes = match.length > 0 && at(match.end) != kBetween;
    if (i >= before + std::max(first_chosen, learned_) && proposes) {
      AcceptanceCounts::Count& of = counts_[bucket(match.length)];
      const bool right = at(match.end) == at(i);
      of = {of.accepted * kKeep + static_cast<float>(right), of.trials * kKeep + 1};
    }
    automaton_.append(at(i));
  }
  if (end > before) learned_ = std::max(learned_, end - before);
  return end == this->end();
}

FoundTokens LookupDrafts::find(int most) {
  check(most >= 0 && most <= kMaxDraftLen, "drafts are within kMaxDraftLen");
  const SuffixAutomaton::Match match = automaton_.match();
  if (match.length == 0 || automaton_.size() != end()) return {};
  // The text may end inside what follows: a text that repeats itself goes on as it did.
  const int period = static_cast<int>(end()) - match.end;
  int count = 0;
  for (float survival = 1; count < most; ++count) {
    survival *= share(match.length + count);
    if (survival < kLeastSurvival) break;
    const TokenId next = count < period ? at(match.end + count) : tokens_[count - period];
    if (next == kBetween) break;  // the end of a text
    survival_[count] = survival;
    tokens_[count] = next;
  }
  std::fill(survival_.begin() + count, survival_.end(), 0.0f);
  return {std::span<const TokenId>(tokens_).first(count), &survival_};
}

}  // namespace quantspec
