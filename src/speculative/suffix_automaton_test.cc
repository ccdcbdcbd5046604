#include "speculative/suffix_automaton.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace quantspec {
namespace {

// The longest end of the text that was met before, by looking at all places.
int longest_match(const std::vector<TokenId>& text) {
  const int size = static_cast<int>(text.size());
  int longest = 0;
  for (int end = 1; end < size; ++end) {
    int length = 0;
    while (length < end && text[end - 1 - length] == text[size - 1 - length]) ++length;
    longest = std::max(longest, length);
  }
  return longest;
}

void require_place(const std::vector<TokenId>& text, const SuffixAutomaton::Match& match) {
  const int size = static_cast<int>(text.size());
  RC_ASSERT(match.end >= match.length && match.end < size);
  RC_ASSERT(
      std::equal(text.end() - match.length, text.end(), text.begin() + match.end - match.length));
}

RC_GTEST_PROP(SuffixAutomaton, FindsTheLongestEndThatWasMetBefore, ()) {
  const int letters = *rc::gen::inRange(1, 5);
  const auto tokens = *rc::gen::container<std::vector<TokenId>>(rc::gen::inRange(0, letters));
  SuffixAutomaton automaton;
  std::vector<TokenId> text;
  for (const TokenId token : tokens) {
    automaton.append(token);
    text.push_back(token);
    RC_ASSERT(automaton.size() == text.size());
    const SuffixAutomaton::Match match = automaton.match();
    RC_ASSERT(match.length == longest_match(text));
    if (match.length > 0) require_place(text, match);
  }
}

TEST(SuffixAutomaton, TakesAnyToken) {
  SuffixAutomaton automaton;
  for (const TokenId token : {0, 2'147'483'647, 5, 0, 2'147'483'647}) automaton.append(token);
  EXPECT_EQ(automaton.match().length, 2);
  EXPECT_EQ(automaton.match().end, 2);
}

TEST(SuffixAutomaton, FindsTheLastOfManyPlaces) {
  SuffixAutomaton automaton;
  for (const TokenId token : {1, 2, 3, 1, 2, 4, 1, 2}) automaton.append(token);
  EXPECT_EQ(automaton.match().length, 2);
  EXPECT_EQ(automaton.match().end, 5);
}

TEST(SuffixAutomaton, BeginsAnew) {
  SuffixAutomaton automaton;
  for (int i = 0; i < 100; ++i) automaton.append(i % 7);
  automaton.clear();
  EXPECT_EQ(automaton.size(), 0u);
  automaton.append(3);
  EXPECT_EQ(automaton.match().length, 0);
  automaton.append(3);
  EXPECT_EQ(automaton.match().length, 1);
}

// One token over and over is the longest chain of links.
TEST(SuffixAutomaton, TakesLinearTimeForATextThatRepeatsItself) {
  SuffixAutomaton automaton;
  automaton.reserve(300'000);
  for (int i = 0; i < 300'000; ++i) automaton.append(7);
  EXPECT_EQ(automaton.match().length, 299'999);
  EXPECT_GT(automaton.match().end, 299'000);
}

// Many states and few tokens, or the other way round: edges are found at once.
TEST(SuffixAutomaton, TakesLinearTimeForTextsOfManyEdges) {
  for (const int period : {4096, 300'000}) {
    SuffixAutomaton automaton;
    for (int i = 0; i < 300'000; ++i) automaton.append(i % period * 36);
    EXPECT_EQ(automaton.match().length, period < 300'000 ? 300'000 - period : 0);
  }
}

}  // namespace
}  // namespace quantspec
