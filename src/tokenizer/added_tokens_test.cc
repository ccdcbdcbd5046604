#include "tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/clock.h"
#include "base/error.h"

namespace quantspec {
namespace {

using Pattern = AddedTokenMatcher::Pattern;

// The pieces as text: plain ones in brackets, tokens as their ids.
std::string cut(const AddedTokenMatcher& matcher, std::string_view text) {
  std::string result;
  for (const auto& piece : matcher.split(text)) {
    result += piece.id ? fmt::format("{} ", *piece.id) : fmt::format("[{}] ", piece.text);
  }
  return result;
}

// Tokens with the ids 0, 1, ...
AddedTokenMatcher matcher_of(std::vector<AddedToken> tokens) {
  std::vector<Pattern> patterns;
  for (AddedToken& token : tokens) {
    token.id = static_cast<TokenId>(patterns.size());
    patterns.push_back({token.content, token});
  }
  return AddedTokenMatcher(patterns);
}

TEST(AddedTokens, AreNotFoundWhereATextIsPlain) {
  const auto matcher = matcher_of({{.content = "<a>"}, {.content = "<b>", .rstrip = true}});
  const std::string_view text = "<a>x<a><b> <a>";
  const auto pieces = [&](std::vector<TextRange> plain) {
    std::string result;
    for (const auto& piece : matcher.split(text, plain)) {
      result += piece.id ? fmt::format("{} ", *piece.id) : fmt::format("[{}] ", piece.text);
    }
    return result;
  };
  EXPECT_EQ(pieces({}), "0 [x] 0 1 0 ");
  EXPECT_EQ(pieces({{4, 7}}), "0 [x<a>] 1 0 ");
  EXPECT_EQ(pieces({{0, 1}, {9, 10}}), "[<a>x] 0 [<b> ] 0 ");
  EXPECT_EQ(pieces({{3, 4}}), "0 [x] 0 1 0 ");  // it touches none
  EXPECT_EQ(pieces({{0, text.size()}}), fmt::format("[{}] ", text));
  std::vector<TextRange> ranges;
  for (const auto& [range, id] : matcher.find(text)) ranges.push_back(range);
  EXPECT_EQ(ranges, (std::vector<TextRange>{{0, 3}, {4, 7}, {7, 10}, {11, 14}}));
}

TEST(AddedTokens, TheLeftmostAndOfThoseTheLongestIsFound) {
  const auto matcher = matcher_of({{.content = "ab"}, {.content = "abcd"}, {.content = "bcde"}});
  EXPECT_EQ(cut(matcher, "xabcdex"), "[x] 1 [ex] ");
  EXPECT_EQ(cut(matcher, "abcxbcdeab"), "0 [cx] 2 0 ");
  EXPECT_EQ(cut(matcher, "abcabcd"), "0 [c] 1 ");
  EXPECT_EQ(cut(matcher, ""), "");
  EXPECT_EQ(cut(AddedTokenMatcher(), "abc"), "[abc] ");
  EXPECT_EQ(cut(matcher_of({{.content = ""}}), "abc"), "[abc] ");
  EXPECT_EQ(cut(matcher_of({{.content = "a"}, {.content = "a"}}), "a"), "1 ");
}

// As in Hugging Face's tokenizers 0.23.
TEST(AddedTokens, WhiteSpaceGoesToTheTokenThatSwallowsItFirst) {
  const auto matcher = matcher_of({{.content = "A", .rstrip = true},
                                   {.content = "  "},
                                   {.content = "B", .lstrip = true},
                                   {.content = "\t", .lstrip = true}});
  EXPECT_EQ(cut(matcher, "x  yA  B  B"), "[x] 1 [y] 0 1 2 1 2 ");
  EXPECT_EQ(cut(matcher, "A   b"), "0 1 [ b] ");  // found in white space that was swallowed
  EXPECT_EQ(cut(matcher, "A \tB"), "0 2 ");       // nothing is left for the tab
  EXPECT_EQ(cut(matcher, "x \u3000\n B"), "[x] 2 ");
}

TEST(AddedTokens, ASingleWordIsNotInsideOne) {
  const auto matcher = matcher_of({{.content = "ab", .single_word = true}, {.content = "b"}});
  EXPECT_EQ(cut(matcher, "ab xab ab_ \u00e9ab,ab"), "0 [ xab ab_ \u00e9ab,] 0 ");
}

// Every position, every pattern, one after another.
std::string cut_naively(const std::vector<AddedToken>& tokens, std::string_view text) {
  const auto is_space = [](char c) { return c == ' '; };
  const auto is_word = [](char c) { return c == 'a' || c == 'b'; };
  std::string result;
  std::size_t plain = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* best = nullptr;
    for (const AddedToken& token : tokens) {
      if (!text.substr(at).starts_with(token.content)) continue;
      if (best == nullptr || token.content.size() > best->content.size()) best = &token;
    }
    if (best == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at += best->content.size();
    const bool in_word =
        (begin > 0 && is_word(text[begin - 1])) || (end < text.size() && is_word(text[end]));
    if (best->single_word && in_word) continue;
    while (best->lstrip && begin > 0 && is_space(text[begin - 1])) --begin;
    if (best->lstrip) begin = std::max(begin, plain);
    while (best->rstrip && end < text.size() && is_space(text[end])) ++end;
    if (begin >= end) continue;
    if (plain < begin) result += fmt::format("[{}] ", text.substr(plain, begin - plain));
    result += fmt::format("{} ", best->id);
    plain = end;
  }
  if (plain < text.size()) result += fmt::format("[{}] ", text.substr(plain));
  return result;
}

TEST(AddedTokens, FindsWhatANaiveSearchFinds) {
  std::mt19937 random(1);
  const auto draw = [&](int below) { return static_cast<int>(random() % below); };
  const auto draw_text = [&](int most) {
    std::string text;
    for (int i = draw(most) + 1; i > 0; --i) text += "ab <"[draw(draw(4) + 1)];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<AddedToken> tokens;
    for (int i = draw(8); i >= 0; --i) {
      AddedToken token{.id = i,
                       .content = draw_text(6),
                       .lstrip = draw(3) == 0,
                       .rstrip = draw(3) == 0,
                       .single_word = draw(3) == 0};
      const auto is_same = [&](const AddedToken& t) { return t.content == token.content; };
      if (std::ranges::none_of(tokens, is_same)) tokens.push_back(token);
    }
    std::vector<Pattern> patterns;
    for (const AddedToken& token : tokens) patterns.push_back({token.content, token});
    const AddedTokenMatcher matcher(patterns);
    for (int i = 0; i < 20; ++i) {
      const std::string text = draw_text(40);
      ASSERT_EQ(cut(matcher, text), cut_naively(tokens, text)) << text;
    }
  }
}

// To look for the longest pattern at every position, or to look through white space again and
// again, took hours for these.
TEST(AddedTokens, TimeIsLinearWhateverThePatterns) {
  constexpr std::size_t kMany = 1'000'000;
  const std::string letters(kMany, 'a');
  const std::string spaces(kMany, ' ');
  const Stopwatch clock;
  const std::string almost = std::string(kMany / 2, 'a') + 'b';
  EXPECT_EQ(matcher_of({{.content = almost}}).split(letters).size(), 1u);
  EXPECT_EQ(matcher_of({{.content = almost}, {.content = "a"}}).split(letters).size(), kMany);
  EXPECT_EQ(matcher_of({{.content = "b" + almost}}).split(letters).size(), 1u);
  const AddedToken stripping{.content = " ", .lstrip = true, .rstrip = true, .single_word = true};
  EXPECT_EQ(matcher_of({stripping}).split(spaces).size(), 1u);
  EXPECT_EQ(matcher_of({{.content = " ", .rstrip = true}}).split(spaces).size(), kMany);
  EXPECT_EQ(matcher_of({{.content = " ", .lstrip = true}}).split(spaces).size(), kMany);
  EXPECT_LT(clock.seconds(), 20);
}

TEST(AddedTokens, TimeIsLinearInTheirNumber) {
  constexpr int kMany = 200'000;
  std::vector<AddedToken> tokens;
  std::string text;
  for (int i = 0; i < kMany; ++i) {
    tokens.push_back({.content = fmt::format("<|token {}|>", i)});
    text += fmt::format("<|token {}|", i) + tokens.back().content;
  }
  const Stopwatch clock;
  EXPECT_EQ(matcher_of(tokens).split(text).size(), 2u * kMany);
  EXPECT_LT(clock.seconds(), 20);
}

}  // namespace
}  // namespace quantspec
