#include "base/shown.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace quantspec {
namespace {

TEST(Shown, PlainTextStaysInQuotes) {
  EXPECT_EQ(shown("lm_head.weight"), "\"lm_head.weight\"");
  EXPECT_EQ(shown("caf\xC3\xA9"), "\"caf\xC3\xA9\"");
  EXPECT_EQ(shown(""), "\"\"");
  EXPECT_EQ(shown("a\"b\\c"), "\"a\\\"b\\\\c\"");
}

TEST(Shown, WhatATerminalObeysIsEscaped) {
  EXPECT_EQ(shown("a\nb\tc\r"), "\"a\\nb\\tc\\r\"");
  EXPECT_EQ(shown("\x1b[31m"), "\"\\u001b[31m\"");
  EXPECT_EQ(shown(std::string_view("\0", 1)), "\"\\u0000\"");
  EXPECT_EQ(shown("\x7f"), "\"\\u007f\"");
  EXPECT_EQ(shown("\xC2\x9B"), "\"\\u009b\"");                // CSI of eight bits
  EXPECT_EQ(shown("a\xE2\x80\xAE"), "\"a\\u202e\"");          // right-to-left override
  EXPECT_EQ(shown("\xE2\x80\xA8"), "\"\\u2028\"");            // line separator
  EXPECT_EQ(shown("\x80\xC3(\xFF"), "\"\\x80\\xc3(\\xff\"");  // no UTF-8
}

TEST(Shown, ACellOfATableIsOneLineAndOneCell) {
  EXPECT_EQ(table_cell("a|b\n\x1b[31m"), "a\\|b\\n\\u001b[31m");
}

TEST(Shown, LongTextIsCutBetweenCharacters) {
  const std::string text = shown(std::string(1'000'000, 'x'));
  EXPECT_EQ(text.size(), 102u);
  EXPECT_TRUE(text.ends_with("x...\""));
  for (int before = 90; before < 100; ++before) {
    std::string long_text(before, 'x');
    for (int i = 0; i < 10; ++i) long_text += "\xF0\x9F\x98\x80";
    EXPECT_EQ(shown(long_text).find("\\x"), std::string::npos) << before;
  }
}

TEST(Shown, EscapesCountAsLongAsTheyAre) {
  const std::string text = shown(std::string(90, '\n'));
  EXPECT_EQ(text.size(), 96u + 5);  // 48 of two, dots and quotes
  EXPECT_TRUE(text.ends_with("\\n...\""));
  EXPECT_EQ(shown(std::string(50, '\n')).size(), 102u);  // whole
  EXPECT_LE(shown(std::string(100, '\x1')).size(), 102u);
  EXPECT_LE(shown(std::string(1'000'000, '\xFF')).size(), 102u);
}

TEST(Shown, ShortenedTextEndsWithAWholeCharacter) {
  EXPECT_EQ(shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(shortened("abcdefg", 6), "abc...");
  EXPECT_EQ(shortened("ab\xC3\xA9\xC3\xA9\xC3\xA9", 6), "ab...");
  EXPECT_EQ(shortened("", 3), "");
}

TEST(OneLine, KeepsWhatIsPlain) {
  EXPECT_EQ(one_line("a/b.json: \"x\\y\" is not it; caf\xC3\xA9 is"),
            "a/b.json: \"x\\y\" is not it; caf\xC3\xA9 is");
}

TEST(OneLine, KeepsBeginningAndEndOfWhatIsLong) {
  const std::string line = one_line("begin " + std::string(1'000'000, '\n') + " end works");
  EXPECT_LE(line.size(), 1'505u);
  EXPECT_TRUE(line.starts_with("begin \\n"));
  EXPECT_TRUE(line.ends_with("\\n end works"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(OneLine, EscapesCountAsLongAsTheyAre) {
  for (const char c : {'\x1', '\xFF', '\xC3'}) {
    for (const int size : {300, 1500, 1501}) {
      const std::string line = one_line("begin " + std::string(size, c) + " end works");
      EXPECT_LE(line.size(), 1'505u);
      EXPECT_TRUE(line.starts_with("begin \\"));
      EXPECT_TRUE(line.ends_with(" end works"));
    }
  }
}

TEST(OneLine, EveryErrorIsOne) {
  const Error error(ErrorKind::kInvalidRequest, "cannot read a\nb\x1b[2J");
  EXPECT_STREQ(error.what(), "cannot read a\\nb\\u001b[2J");
}

}  // namespace
}  // namespace quantspec
