// Templates of ours with what jinja2 makes of them (tools/make_chat_tests.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "chat/chat.h"

namespace quantspec {
namespace {

std::string read(const std::string& name) {
  std::ifstream file(std::string(QUANTSPEC_TESTDATA) + "/chat/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Monday, the 5th of February 2024, 13:04:09: as tools/chat_jinja.py has it.
std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 1;
  time.tm_mday = 5;
  time.tm_hour = 13;
  time.tm_min = 4;
  time.tm_sec = 9;
  time.tm_wday = 1;
  time.tm_yday = 35;
  return time;
}

// Renders what `golden` has the text of, or refuses what jinja2 refuses.
void expect_golden(const std::string& source, const OrderedJson& variables,
                   const OrderedJson& golden) {
  ChatInput input;
  input.variables = &variables;
  input.now = fixed_time();
  try {
    const std::string text = ChatTemplate(source).render(input);
    if (golden.contains("text")) {
      EXPECT_EQ(text, golden["text"].get<std::string>());
    } else {
      ADD_FAILURE() << "not refused: " << golden["refused"] << "; made " << text;
    }
  } catch (const Error& error) {
    EXPECT_TRUE(golden.contains("refused")) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_NE(error.kind(), ErrorKind::kInternal);
  }
}

TEST(ChatGolden, SnippetsAreAsJinjaHasThem) {
  const OrderedJson file = OrderedJson::parse(read("snippets.json"));
  ASSERT_GT(file["snippets"].size(), 150u);
  for (const OrderedJson& snippet : file["snippets"]) {
    const auto source = snippet["template"].get<std::string>();
    SCOPED_TRACE(snippet["construct"].get<std::string>() + ": " + source);
    expect_golden(source, file["variables"], snippet);
  }
}

TEST(ChatGolden, ConversationsAreAsJinjaHasThem) {
  const OrderedJson conversations = OrderedJson::parse(read("conversations.json"));
  const OrderedJson goldens = OrderedJson::parse(read("goldens.json"));
  ASSERT_GE(goldens.size(), 4 * conversations.size());
  std::map<std::string, std::string> sources;
  for (const OrderedJson& golden : goldens) {
    const auto name = golden["template"].get<std::string>();
    const auto conversation = golden["conversation"].get<std::string>();
    SCOPED_TRACE(name + ", " + conversation);
    if (!sources.contains(name)) sources[name] = read(name);
    expect_golden(sources[name], conversations[conversation], golden);
  }
}

}  // namespace
}  // namespace quantspec
