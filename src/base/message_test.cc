#include "base/message.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/error.h"

namespace quantspec {

namespace {

// Someone's table.
std::string_view flags(Field field) {
  switch (field) {
    case Field::kTemperature:
      return "--temp";
    case Field::kContext:
      return "--ctx-size";
    case Field::kDraftBudget:
      return "--draft-budget";
    default:
      return "--other";
  }
}

TEST(Message, FieldsAreCalledAsTheReaderCallsThem) {
  const auto message = Message::format("{} {}: a smaller {} or {} works", Field::kContext, 4096,
                                       Field::kDraftBudget, Field::kContext);
  EXPECT_EQ(message.text(), "context size 4096: a smaller draft budget or context size works");
  EXPECT_EQ(message.text(flags), "--ctx-size 4096: a smaller --draft-budget or --ctx-size works");
}

TEST(Message, EveryFieldHasAPlainNameOfItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Field::kCalibrationTokens); ++i) {
    const std::string_view name = plain_name(static_cast<Field>(i));
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(Message::format("{}", static_cast<Field>(i)).text(), name);
    EXPECT_EQ(name.find("--"), name.npos);
  }
}

TEST(Message, IsAboutTheFieldWithWhichItBegins) {
  EXPECT_EQ(Message::format("{} is -1", Field::kTemperature).subject(), Field::kTemperature);
  EXPECT_EQ(Message::format("the context is full ({})", Field::kContext).subject(), std::nullopt);
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
  const auto inner = Message::format("{} '{}'", Field::kDataset, "x");
  Message outer = Message::format("{}: {:.1f} of {}", inner, 0.25, Field::kContext);
  EXPECT_EQ(outer.text(), "dataset 'x': 0.2 of context size");
  EXPECT_EQ(outer.subject(), Field::kDataset);
  EXPECT_EQ(outer.without(Message::format("{}: ", inner)).text(flags), "0.2 of --ctx-size");
  EXPECT_EQ(outer.without("nothing of it"), outer);
  outer += Message::format("; {}", Field::kTemperature);
  EXPECT_EQ(outer.text(flags), "--other 'x': 0.2 of --ctx-size; --temp");
}

TEST(Error, KnowsItsFieldAndIsReadByAnyNames) {
  try {
    fail(ErrorKind::kInvalidRequest, "{} is {}\n{} works", Field::kTemperature, -1,
         Field::kContext);
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), Field::kTemperature);
    EXPECT_STREQ(error.what(), "temperature is -1\\ncontext size works");
    EXPECT_EQ(error.what(flags), "--temp is -1\\n--ctx-size works");
  }
}

}  // namespace

}  // namespace quantspec
