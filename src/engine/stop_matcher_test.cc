#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace quantspec {
namespace {

std::string feed(StopMatcher& matcher, std::initializer_list<const char*> pieces) {
  std::string shown;
  for (const char* piece : pieces) shown += matcher.push(piece);
  return shown + matcher.flush();
}

TEST(StopMatcher, PassesTextThroughWithoutStops) {
  StopMatcher matcher({});
  EXPECT_EQ(feed(matcher, {"a", "", "bc"}), "abc");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, FindsAStopAcrossPieces) {
  StopMatcher matcher({"###", "END"});
  EXPECT_EQ(feed(matcher, {"one E", "N", "D two"}), "one ");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher({"abab"});
  EXPECT_EQ(matcher.push("xaba"), "x");
  EXPECT_EQ(matcher.push("c"), "abac");
  EXPECT_EQ(matcher.push("ab"), "");
  EXPECT_EQ(matcher.flush(), "ab");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, OverlappingBeginningsAreFound) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(feed(matcher, {"a", "a", "a", "b", "c"}), "a");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, TheEarliestStopWins) {
  StopMatcher matcher({"later", "soon"});
  EXPECT_EQ(feed(matcher, {"now soon later"}), "now ");
}

TEST(StopMatcher, IgnoresEmptyStops) {
  StopMatcher matcher({""});
  EXPECT_EQ(feed(matcher, {"abc"}), "abc");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, ShowsNothingAfterAStop) {
  StopMatcher matcher({"x"});
  EXPECT_EQ(matcher.push("axb"), "a");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

}  // namespace
}  // namespace quantspec
