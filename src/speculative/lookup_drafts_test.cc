#include "speculative/lookup_drafts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "speculative/speculative.h"

namespace quantspec {
namespace {

using Tokens = std::vector<TokenId>;

Tokens numbers(int first, int count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens of(const FoundTokens& found) { return {found.tokens.begin(), found.tokens.end()}; }

void append(Tokens& text, const Tokens& more) { text.insert(text.end(), more.begin(), more.end()); }

TEST(LookupDrafts, ProposeWhatFollowed) {
  Tokens text = numbers(0, 50);
  append(text, {90, 91, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  LookupDrafts drafts;
  drafts.follow(text, text.size());
  const FoundTokens found = drafts.find(8);
  EXPECT_EQ(of(found), numbers(20, 8));
  float before = 1;
  for (int i = 0; i < 8; ++i) {
    EXPECT_GT((*found.survival)[i], 0);
    EXPECT_LE((*found.survival)[i], before);
    before = (*found.survival)[i];
  }
  EXPECT_EQ((*found.survival)[8], 0);
}

TEST(LookupDrafts, ProposeNothingAfterWhatIsNew) {
  const Tokens text = numbers(0, 50);
  LookupDrafts drafts;
  drafts.follow(text, 0);
  EXPECT_TRUE(drafts.find(8).tokens.empty());
  EXPECT_TRUE(LookupDrafts().find(8).tokens.empty());
}

TEST(LookupDrafts, GoOnWithATextThatRepeatsItself) {
  Tokens text;
  for (int i = 0; i < 12; ++i) append(text, {1, 2, 3});
  LookupDrafts drafts;
  drafts.follow(text, text.size());
  EXPECT_EQ(of(drafts.find(7)), (Tokens{1, 2, 3, 1, 2, 3, 1}));
}

TEST(LookupDrafts, ProposeNoMoreThanAsked) {
  Tokens text = numbers(0, 50);
  append(text, numbers(0, 20));
  LookupDrafts drafts;
  drafts.follow(text, text.size());
  EXPECT_EQ(drafts.find(0).tokens.size(), 0u);
  EXPECT_EQ(drafts.find(3).tokens.size(), 3u);
  EXPECT_EQ(drafts.find(kMaxDraftLen).tokens.size(), std::size_t{kMaxDraftLen});
}

// What is copied is copied on, and what only seems so is not.
TEST(LookupDrafts, LearnFromEveryTokenThatIsChosen) {
  LookupDrafts copies, others;
  Tokens copied = numbers(0, 200);
  append(copied, numbers(0, 100));
  copies.follow(copied, 200);
  EXPECT_GT(copies.share(3), LookupDrafts().share(3));
  EXPECT_GT(copies.share(40), 0.9f);

  std::mt19937 random(1);
  Tokens other;
  for (int i = 0; i < 2000; ++i) other.push_back(static_cast<int>(random() % 30));
  others.follow(other, 0);
  EXPECT_LT(others.share(1), 0.1f);
  EXPECT_LT(others.share(2), 0.1f);
  EXPECT_TRUE(others.find(8).tokens.empty());
}

TEST(LookupDrafts, LearnNothingFromAPrompt) {
  Tokens text = numbers(0, 200);
  append(text, numbers(0, 100));
  LookupDrafts drafts;
  drafts.follow(text, text.size());
  for (const int length : {1, 5, 40}) EXPECT_EQ(drafts.share(length), LookupDrafts().share(length));
}

TEST(LookupDrafts, ReadALongTextInParts) {
  Tokens text = numbers(0, 2 * LookupDrafts::kMostFollowed);
  append(text, numbers(100, 20));
  LookupDrafts drafts;
  EXPECT_FALSE(drafts.follow(text, text.size()));
  EXPECT_TRUE(drafts.find(8).tokens.empty());
  EXPECT_FALSE(drafts.follow(text, text.size()));
  EXPECT_TRUE(drafts.follow(text, text.size()));
  EXPECT_EQ(of(drafts.find(3)), numbers(120, 3));
}

TEST(LookupDrafts, LearnATokenOnceThoughTheTextIsCut) {
  Tokens text = numbers(0, 50);
  append(text, numbers(0, 30));
  LookupDrafts once, again;
  once.follow(text, 50);
  again.follow(text, 50);
  again.truncate(79);
  again.follow(text, 50);
  for (const int length : {1, 5, 10}) EXPECT_EQ(again.share(length), once.share(length));
}

TEST(LookupDrafts, FollowATextThatWasCut) {
  Tokens text = numbers(0, 50);
  append(text, numbers(10, 10));
  LookupDrafts drafts;
  drafts.follow(text, text.size());
  text.resize(55);
  drafts.truncate(text.size());
  append(text, {37, 38, 39, 40, 41});
  drafts.follow(text, text.size());
  EXPECT_EQ(of(drafts.find(3)), numbers(42, 3));
}

TEST(LookupDrafts, ProposeWhatFollowsInAReference) {
  LookupDrafts drafts;
  Tokens reference = numbers(70, 12), text = {99};
  append(reference, numbers(0, 30));
  drafts.refer_to(reference);
  append(text, numbers(70, 12));
  const std::size_t prompt = text.size();
  EXPECT_TRUE(drafts.follow(text, text.size()));
  EXPECT_EQ(of(drafts.find(4)), numbers(0, 4));
  append(text, numbers(0, 18));
  text.push_back(98);  // other than it says
  drafts.follow(text, prompt);
  EXPECT_TRUE(drafts.find(4).tokens.empty());
  append(text, numbers(19, 8));
  drafts.follow(text, prompt);
  EXPECT_EQ(of(drafts.find(4)), numbers(27, 3)) << "up to its end";
  // After a cut, and of another text, it is still known.
  text.resize(prompt);
  drafts.truncate(text.size());
  drafts.follow(text, prompt);
  EXPECT_EQ(of(drafts.find(4)), numbers(0, 4));
  drafts.clear();
  const Tokens other = numbers(5, 8);
  drafts.follow(other, other.size());
  EXPECT_EQ(of(drafts.find(4)), numbers(13, 4));
}

TEST(LookupDrafts, NothingFollowsTheEndOfAReference) {
  LookupDrafts drafts;
  drafts.refer_to(numbers(0, 30));
  const Tokens text = numbers(18, 9);
  drafts.follow(text, text.size());
  EXPECT_EQ(of(drafts.find(8)), numbers(27, 3));
  const Tokens all = numbers(20, 10);
  drafts.follow(all, all.size());
  EXPECT_TRUE(drafts.find(8).tokens.empty());
}

TEST(LookupDrafts, AReferenceMayBeSeveralTexts) {
  LookupDrafts drafts;
  Tokens reference = numbers(0, 30);
  for (const int first : {100, 200}) {
    reference.push_back(DecodingOptions::kBetweenTexts);
    append(reference, numbers(first, 30));
  }
  drafts.refer_to(reference);
  for (const int first : {0, 100, 200}) {
    const Tokens text = numbers(first, 9);
    drafts.clear();
    drafts.follow(text, text.size());
    EXPECT_EQ(of(drafts.find(8)), numbers(first + 9, 8));
    const Tokens end = numbers(first + 20, 8);
    drafts.clear();
    drafts.follow(end, end.size());
    EXPECT_EQ(of(drafts.find(8)), numbers(first + 28, 2)) << "none goes on with the next";
  }
}

TEST(LookupDrafts, ALongReferenceIsReadInParts) {
  LookupDrafts drafts;
  drafts.refer_to(numbers(0, LookupDrafts::kMostFollowed + 10));
  const Tokens text = numbers(LookupDrafts::kMostFollowed - 10, 13);
  EXPECT_FALSE(drafts.follow(text, text.size()));
  EXPECT_TRUE(drafts.find(8).tokens.empty());
  EXPECT_TRUE(drafts.follow(text, text.size()));
  EXPECT_EQ(of(drafts.find(8)), numbers(LookupDrafts::kMostFollowed + 3, 7));
}

TEST(LookupDrafts, AnotherReferenceIsAnotherBeginning) {
  LookupDrafts drafts;
  drafts.refer_to(numbers(0, 30));
  const Tokens text = numbers(5, 4);
  drafts.follow(text, text.size());
  EXPECT_FALSE(drafts.find(8).tokens.empty());
  drafts.refer_to({});
  drafts.follow(text, text.size());
  EXPECT_TRUE(drafts.find(8).tokens.empty());
}

}  // namespace
}  // namespace quantspec
