#include "tokenizer/characters.h"

#include <gtest/gtest.h>

namespace quantspec {
namespace {

TEST(Characters, ReplaceAllLeavesWhatItPutIn) {
  EXPECT_EQ(replace_all("aXbXX", "X", "XX"), "aXXbXXXX");
  EXPECT_EQ(replace_all("", "X", "y"), "");
}

TEST(Characters, CharacterClasses) {
  EXPECT_TRUE(is_white_space(0x3000));
  EXPECT_FALSE(is_white_space(0x180E));  // not since Unicode 6.3
  EXPECT_FALSE(is_white_space(0x200B));
  EXPECT_TRUE(is_word_character('_'));
  EXPECT_TRUE(is_word_character(0x301));
  EXPECT_FALSE(is_word_character('-'));
  EXPECT_TRUE(is_numeric(0xBD));
  EXPECT_FALSE(is_numeric('a'));
}

}  // namespace
}  // namespace quantspec
