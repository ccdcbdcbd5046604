#include "base/message.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "base/fields.h"

namespace quantspec {

namespace {

constexpr Field kTemperature{"temperature"}, kDataset{"dataset"};

// Someone's table.
std::string_view flags(Field field) {
  if (field == kTemperature) return "--temp";
  if (field == field::kContext) return "--ctx-size";
  if (field == field::kDraftBudget) return "--draft-budget";
  return "--other";
}

TEST(Message, FieldsAreCalledAsTheReaderCallsThem) {
  const auto message = Message::format("{} {}: a smaller {} or {} works", field::kContext, 4096,
                                       field::kDraftBudget, field::kContext);
  EXPECT_EQ(message.text(), "context size 4096: a smaller draft budget or context size works");
  EXPECT_EQ(message.text(flags), "--ctx-size 4096: a smaller --draft-budget or --ctx-size works");
}

TEST(Message, IsAboutTheFieldWithWhichItBegins) {
  EXPECT_EQ(Message::format("{} is -1", kTemperature).subject(), kTemperature);
  EXPECT_EQ(Message::format("the context is full ({})", field::kContext).subject(), std::nullopt);
  EXPECT_EQ(Message().subject(), std::nullopt);
}

// Whatever bytes a file or a user puts into a message: every one, before every other.
TEST(Message, TextIsNeverTakenForAField) {
  for (int first = 0; first < 256; ++first) {
    for (int second : {0, 1, 26, 120}) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second)};
      const auto never = [](Field) { return std::string_view("A FIELD"); };
      const std::vector<std::string> list = {text};
      for (const Message& message :
           {Message(text), Message::format("{}", text), Message::format("{}", text.c_str()),
            Message::format("{}{}", text[0], text[1]), Message::format("{:>2}", text),
            Message::format("{}", fmt::join(list, ",")), Message::format("{}", Message(text))}) {
        EXPECT_EQ(message.text(never).find("A FIELD"), std::string::npos);
        EXPECT_EQ(message.subject(), std::nullopt);
      }
      if (first == 26 || second == 26) continue;
      EXPECT_EQ(Message(text).text(), text);
    }
  }
  EXPECT_EQ(Message(std::string_view("a\x1A")).text(), "a\\u001a");
}

TEST(Message, HoldsOtherMessages) {
  const auto inner = Message::format("{} '{}'", kDataset, "x");
  Message outer = Message::format("{}: {:.1f} of {}", inner, 0.25, field::kContext);
  EXPECT_EQ(outer.text(), "dataset 'x': 0.2 of context size");
  EXPECT_EQ(outer.subject(), kDataset);
  EXPECT_EQ(outer.without(Message::format("{}: ", inner)).text(flags), "0.2 of --ctx-size");
  EXPECT_EQ(outer.without("nothing of it"), outer);
  outer += Message::format("; {}", kTemperature);
  EXPECT_EQ(outer.text(flags), "--other 'x': 0.2 of --ctx-size; --temp");
}

TEST(Error, KnowsItsFieldAndIsReadByAnyNames) {
  try {
    fail(ErrorKind::kInvalidRequest, "{} is {}\n{} works", kTemperature, -1, field::kContext);
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), kTemperature);
    EXPECT_STREQ(error.what(), "temperature is -1\\ncontext size works");
    EXPECT_EQ(error.what(flags), "--temp is -1\\n--ctx-size works");
  }
}

}  // namespace

}  // namespace quantspec
