#include "base/json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>

#include "base/error.h"

namespace quantspec {
namespace {

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorKind::kInternal, ""};
}

TEST(Json, ParsesText) {
  const Json json = parse_json(R"({"a": [1, 2.5, "x\u00e9"], "b": null})", "config.json");
  EXPECT_EQ(json["a"][0], 1);
  EXPECT_EQ(json["a"][2], "x\xc3\xa9");
  EXPECT_TRUE(json["b"].is_null());
}

TEST(Json, BrokenTextNamesTheFileAndTheByte) {
  for (const std::string text : {"", "{", "{\"a\": }", "[1, 2", "{} x", "\"\xff\"", "nul"}) {
    const Error error = error_of([&] { parse_json(text, "some/config.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::kCorruptFile) << text;
    EXPECT_NE(std::string(error.what()).find("some/config.json"), std::string::npos);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  const Error error = error_of([] { parse_json("[1, ?]", "f"); });
  EXPECT_STREQ(error.what(), "f: not valid JSON at byte 5");
}

TEST(Json, NumbersBeyondDoubleAreRefused) {
  EXPECT_EQ(error_of([] { parse_json("[1e999]", "f"); }).kind(), ErrorKind::kCorruptFile);
}

TEST(Json, HostileNestingIsRefused) {
  for (const char open : {'[', '{'}) {
    std::string text;
    for (int i = 0; i < 1000000; ++i) text += open == '[' ? "[" : "{\"a\":";
    EXPECT_EQ(error_of([&] { parse_json(text, "f"); }).kind(), ErrorKind::kCorruptFile);
  }
  EXPECT_NO_THROW(parse_json(std::string(100, '[') + std::string(100, ']'), "f"));
}

TEST(Json, ReadsAFile) {
  const std::string path = testing::TempDir() + "json_test.json";
  std::ofstream(path) << R"({"layers": 6})";
  EXPECT_EQ(parse_json_file(path)["layers"], 6);
  std::ofstream(path) << "{broken";
  EXPECT_EQ(error_of([&] { parse_json_file(path); }).kind(), ErrorKind::kCorruptFile);
}

TEST(Json, MissingFileIsAnInvalidRequest) {
  const Error error = error_of([] { parse_json_file("/nowhere/config.json"); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
  EXPECT_NE(std::string(error.what()).find("/nowhere/config.json"), std::string::npos);
}

}  // namespace
}  // namespace quantspec
