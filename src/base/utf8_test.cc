#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace quantspec {
namespace {

// Each row: bytes, and how many U+FFFD stand for them (Unicode 15, table 3-8 and around it).
TEST(Utf8, MaximalSubpartsBecomeOneReplacementCharacterEach) {
  const struct {
    std::string bytes;
    int marks;
  } rows[] = {
      {"\x80", 1},         {"\xC0\x80", 2},         {"\xC2", 1},         {"\xE2\x82", 1},
      {"\xED\xA0\x80", 3}, {"\xE0\x80\x80", 3},     {"\xF0\x9F\x98", 1}, {"\xF4\x90\x80\x80", 4},
      {"\xFF\xFE", 2},     {"\xF0\x80\x80\x80", 4}, {"\xF1\x80", 1},     {"\xE1\x80\xE2\x82", 2},
  };
  for (const auto& row : rows) {
    std::string expected;
    for (int i = 0; i < row.marks; ++i) expected += kReplacementCharacter;
    EXPECT_EQ(repair_utf8(row.bytes), expected);
    EXPECT_EQ(repair_utf8("a" + row.bytes + "b"), "a" + expected + "b");
  }
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code == 0xD800) code = 0xE000;  // surrogates are no characters
    std::string text;
    append_utf8(code, text);
    const Utf8Step step = next_utf8(text + "\x80");
    ASSERT_EQ(step.state, Utf8State::kValid) << std::uint32_t(code);
    ASSERT_EQ(step.code, code);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(last_utf8("x" + text).code, code);
    for (std::size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(next_utf8(text.substr(0, size)).state, Utf8State::kUnfinished);
    }
  }
}

}  // namespace
}  // namespace quantspec
