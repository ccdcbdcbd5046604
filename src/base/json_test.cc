#include "base/json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/expect_error.h"
#include "base/expect_linear_time.h"

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

TEST(Json, AKeyThatStandsTwiceIsRefused) {
  for (const std::string text : {R"({"a": 1, "a": 1})", R"([{"b": {"a": [], "c": 0, "a": {}}}])"}) {
    expect_error(ErrorKind::kCorruptFile, {"f", "\"a\" stands twice"},
                 [&] { parse_json(text, "f"); });
  }
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": {"a": 1}})", "f"));
}

TEST(Json, TimeIsLinearInTheObjectsOfOneParent) {
  std::string members, elements;
  const auto write = [&](std::size_t objects) {
    members = elements = "";
    for (std::size_t i = 0; i < objects; ++i) {
      const std::string object = R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})";
      members += fmt::format("{}\"tensor {}\": {}", i == 0 ? "{" : ", ", i, object);
      elements += (i == 0 ? "[" : ", ") + object;
    }
    members += "}";
    elements += "]";
  };
  const auto parse = [](const std::string& text) {
    return [&text](std::size_t objects) { EXPECT_EQ(parse_json(text, "f").size(), objects); };
  };
  expect_linear_time(10'000, write, parse(members));
  expect_linear_time(10'000, write, parse(elements));
  expect_linear_time(10'000, write, [&](std::size_t objects) {
    std::size_t count = 0;
    parse_json_array(elements, "f", [&](std::size_t, Json) { ++count; });
    EXPECT_EQ(count, objects);
  });
}

TEST(Json, TooManyValuesAreRefused) {
  std::string text = "[0";
  for (int i = 0; i < 1 << 23; ++i) text += ",0";
  text += "]";
  expect_error(ErrorKind::kCorruptFile, {"f", "values"}, [&] { parse_json(text, "f"); });
  std::size_t count = 0;
  parse_json_array(text, "f", [&](std::size_t, Json) { ++count; });  // each is one
  EXPECT_EQ(count, (1u << 23) + 1);
}

TEST(Json, AZeroByteIsRefused) {
  for (const std::size_t at : {0, 1, 4, 8}) {
    std::string text = R"({"a": 1} )";
    text[at] = '\0';
    expect_error(ErrorKind::kCorruptFile, {"f", fmt::format("byte {} ", at + 1)},
                 [&] { parse_json(text, "f"); });
  }
}

TEST(Json, WhatAClientSendsHasLimitsOfItsOwn) {
  const auto parse = [](const std::string& text) {
    return [text] { parse_json(text, "the body", kClientJson); };
  };
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  const auto many = [](std::size_t values) {  // an array is one, too
    std::string text = "[0";
    for (std::size_t i = 2; i < values; ++i) text += ",0";
    return text + "]";
  };
  EXPECT_NO_THROW(parse(nested(64))());
  EXPECT_NO_THROW(parse(many(100'000))());
  constexpr ErrorKind kError = ErrorKind::kInvalidRequest;
  expect_error(kError, {"the body", "64 levels", "at byte 65"}, parse(nested(65)));
  expect_error(kError, {"64 levels", "at byte 65"}, parse(std::string(1'000'000, '[')));
  expect_error(kError, {"100000 values", "at byte 20000"}, parse(many(100'001)));
  expect_error(kError, {"\"a\"", "at byte 12", "twice"}, parse(R"({"a": 1, "a": 2})"));
  expect_error(kError, {"at byte 8"}, parse("{\"a\": \"\xC0\x80\"}"));
  for (const std::string& text : std::vector<std::string>{
           "", "\"\xED\xA0\x80\"", R"("\ud800")", R"("\udc00\ud800")", "\"\xF4\x90\x80\x80\"",
           "\"\xC3\"", "\"\n\"", "1e999", "NaN", "{} {}", "\xC3\xA9", "[1,]", "01", "+1"}) {
    expect_error(kError, {"the body", "at byte"}, parse(text));
  }
}

TEST(Json, AnArrayComesElementByElement) {
  const auto taken = [](std::string_view text) {
    Json all = Json::array();
    parse_json_array(text, "f", [&](std::size_t index, Json element) {
      EXPECT_EQ(index, all.size());
      all.push_back(std::move(element));
    });
    return all;
  };
  const std::string text = R"([1, "two", null, [3, [4]], {"five": [{}, 6]}, [], {}, -7.5, true])";
  EXPECT_EQ(taken(text), parse_json(text, "f"));
  EXPECT_EQ(taken("[]"), Json::array());
  for (const char* not_array : {"1", "{}", R"({"a": [1]})", "null", R"("[]")"}) {
    expect_error(ErrorKind::kCorruptFile, {"f", "no JSON array"}, [&] { taken(not_array); });
  }
  for (const char* broken : {"", "[", "[1, 2", "[1] 2", "[{]"}) {
    expect_error(ErrorKind::kCorruptFile, {"f", "not valid JSON"}, [&] { taken(broken); });
  }
  const auto stop = [](std::size_t index, Json) {
    if (index == 1) fail(ErrorKind::kInvalidRequest, "stop");
  };
  expect_error(ErrorKind::kInvalidRequest, {"stop"},
               [&] { parse_json_array("[1, 2, 3", "f", stop); });
}

TEST(Json, EveryStringCanBeWritten) {
  EXPECT_EQ(dump_json(Json{{"path", "a\xFF/b"}}), "{\"path\":\"a\xEF\xBF\xBD/b\"}");
  EXPECT_EQ(dump_json(nlohmann::ordered_json{{"b", 1}, {"a", "\xC3"}}),
            "{\"b\":1,\"a\":\"\xEF\xBF\xBD\"}");
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
