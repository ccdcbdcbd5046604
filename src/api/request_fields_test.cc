// Every row of the table at its bounds, and what bodies may be.
#include "api/request_fields.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "api/body_json.h"
#include "api/messages.h"
#include "base/expect_error.h"
#include "base/expect_linear_time.h"

namespace quantspec::api {
namespace {

constexpr std::array kEndpoints = {Endpoint::kChat, Endpoint::kCompletions, Endpoint::kTokenize,
                                   Endpoint::kDetokenize, Endpoint::kApplyTemplate};

Endpoint any_of(const RequestField& row) {
  for (const Endpoint endpoint : kEndpoints) {
    if (row.is_of(endpoint)) return endpoint;
  }
  ADD_FAILURE() << row.name;
  return Endpoint::kChat;
}

// A body with what must be in one.
OrderedJson least_body(Endpoint endpoint) {
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "user", "content": "Hi"}])");
  switch (endpoint) {
    case Endpoint::kChat:
    case Endpoint::kApplyTemplate:
      return {{"messages", messages}};
    case Endpoint::kCompletions:
    case Endpoint::kTokenize:
      return {{"prompt", "Hi"}};
    case Endpoint::kDetokenize:
      break;
  }
  return {{"tokens", {1, 2}}};
}

Wanted read(Endpoint endpoint, const OrderedJson& body) {
  std::vector<std::string> unknown;
  return read_wanted(endpoint, body, {}, unknown);
}

OrderedJson with(const RequestField& row, OrderedJson value) {
  OrderedJson body = least_body(any_of(row));
  body[std::string(row.name)] = std::move(value);
  if (row.name == "best_of") body["n"] = body["best_of"];
  if (row.name == "receipt") body["temperature"] = 0;
  if (row.name == "prediction" && body["prediction"].is_object()) {
    body["prediction"] = {{"type", "content"}, {"content", "Hello"}};
  }
  return body;
}

void expect_taken(const RequestField& row, OrderedJson value) {
  const OrderedJson body = with(row, std::move(value));
  EXPECT_NO_THROW(read(any_of(row), body)) << body.dump().substr(0, 200);
}

void expect_refused(const RequestField& row, OrderedJson value) {
  const OrderedJson body = with(row, std::move(value));
  try {
    read(any_of(row), body);
    ADD_FAILURE() << body.dump().substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    ASSERT_TRUE(error.field()) << error.what();
    EXPECT_EQ(error.field()->plain_name, row.name) << error.what();
  }
}

TEST(RequestFields, AreEachKnownOnceWhereTheyMayStand) {
  for (const Endpoint endpoint : kEndpoints) {
    std::set<std::string_view> names;
    for (const RequestField& row : request_fields()) {
      if (!row.is_of(endpoint)) continue;
      EXPECT_TRUE(names.insert(row.name).second) << row.name;
      EXPECT_EQ(find_field(row.name, endpoint), &row);
    }
  }
  EXPECT_EQ(find_field("temperatur", Endpoint::kChat), nullptr);
  EXPECT_EQ(find_field("prompt", Endpoint::kChat), nullptr);
}

TEST(RequestFields, SayWhatTheyAre) {
  for (const RequestField& row : request_fields()) {
    EXPECT_FALSE(row.doc.empty()) << row.name;
    EXPECT_FALSE(row.range().empty()) << row.name;
    EXPECT_EQ(row.doc.find('|'), row.doc.npos) << row.name;
    EXPECT_EQ(row.apply != nullptr, row.honour == Honour::kDone) << row.name;
  }
}

TEST(RequestFields, NullIsAsIfItWereNotThere) {
  for (const RequestField& row : request_fields()) {
    if (!row.required) expect_taken(row, nullptr);
  }
}

TEST(RequestFields, ASeedIsNoNegativeFraction) {
  OrderedJson body = {{"prompt", "Hi"}};
  for (const OrderedJson& none : {OrderedJson(-1), OrderedJson(nullptr)}) {
    body["seed"] = none;
    EXPECT_FALSE(read(Endpoint::kCompletions, body).seed);
  }
  body["seed"] = 7.0;
  EXPECT_EQ(read(Endpoint::kCompletions, body).seed, 7u);
  expect_refused(*find_field("seed", Endpoint::kCompletions), -1.0);
}

TEST(RequestFields, OfNumbersKeepToTheirBounds) {
  for (const RequestField& row : request_fields()) {
    if (row.honour != Honour::kDone) continue;
    if (row.type == FieldType::kWhole) {
      expect_taken(row, row.least);
      expect_taken(row, row.most);
      expect_refused(row, row.least - 1);
      if (row.most < std::numeric_limits<std::uint64_t>::max()) expect_refused(row, row.most + 1);
      expect_refused(row, 1e300);
      expect_refused(row, 1.5);
      expect_refused(row, std::numeric_limits<std::int64_t>::min());
    } else if (row.type == FieldType::kReal) {
      expect_taken(row, row.low);
      expect_taken(row, row.high);
      expect_refused(row, row.low - 1e-3);
      expect_refused(row, row.high + 1e-3);
      expect_refused(row, -1e300);
      expect_refused(row, 1e300);
    } else {
      continue;
    }
    for (const char* wrong : {"\"1\"", "true", "[1]", "{}"}) {
      expect_refused(row, OrderedJson::parse(wrong));
    }
  }
}

TEST(RequestFields, OfOtherTypesKeepToThem) {
  for (const RequestField& row : request_fields()) {
    if (row.honour != Honour::kDone) continue;
    switch (row.type) {
      case FieldType::kFlag:
        if (row.name != "add_generation_prompt" && row.name != "continue_final_message") {
          expect_taken(row, true);
        }
        expect_taken(row, false);
        for (const char* wrong : {"1", "\"true\"", "[]"}) {
          expect_refused(row, OrderedJson::parse(wrong));
        }
        break;
      case FieldType::kTexts:
        expect_taken(row, "a");
        expect_taken(row, OrderedJson(std::vector<std::string>(kMostStops, "a")));
        expect_taken(row, std::string(row.most, 'a'));
        expect_refused(row, OrderedJson(std::vector<std::string>(kMostStops + 1, "a")));
        expect_refused(row, std::string(row.most + 1, 'a'));
        for (const char* wrong : {"\"\"", "[\"\"]", "[1]", "1", "{}"}) {
          expect_refused(row, OrderedJson::parse(wrong));
        }
        break;
      case FieldType::kChoice:
        for (const OrderedJson& one : OrderedJson::parse(row.values)) expect_taken(row, one);
        expect_refused(row, "other");
        expect_refused(row, 1);
        break;
      case FieldType::kIds:
        expect_taken(row, OrderedJson::parse("[0, 1]"));
        if (row.most < 1000) {
          expect_taken(row, OrderedJson(std::vector<int>(row.most, 1)));
          expect_refused(row, OrderedJson(std::vector<int>(row.most + 1, 1)));
        }
        for (const char* wrong : {"[-1]", "[1.5]", "[2147483648]", "[\"a\"]", "1"}) {
          expect_refused(row, OrderedJson::parse(wrong));
        }
        break;
      case FieldType::kObject:
        expect_taken(row, OrderedJson::object());
        expect_refused(row, 1);
        break;
      case FieldType::kList:
        expect_taken(row, OrderedJson::array());
        expect_refused(row, 1);
        break;
      case FieldType::kText:
        if (row.most < 1000) expect_refused(row, std::string(row.most + 1, 'a'));
        expect_refused(row, 1);
        break;
      case FieldType::kWhole:
      case FieldType::kReal:
      case FieldType::kAny:
        break;
    }
  }
}

// A field that is known and cannot be honoured is never swallowed.
TEST(RequestFields, ThatAreNotThereAreTakenWhereTheyAskForNothing) {
  for (const RequestField& row : request_fields()) {
    if (row.honour != Honour::kNeutral) continue;
    for (const OrderedJson& value : OrderedJson::parse(row.values)) expect_taken(row, value);
    for (const char* other : {"7", "\"other\"", "[7]", "{\"a\": 7}"}) {
      expect_refused(row, OrderedJson::parse(other));
    }
  }
}

TEST(RequestFields, ThatMustBeThereAreMissed) {
  for (const RequestField& row : request_fields()) {
    if (!row.required) continue;
    expect_refused(row, nullptr);
    const auto field = std::string(row.name);
    expect_error(ErrorKind::kInvalidRequest, {field},
                 [&] { read(any_of(row), OrderedJson::object()); });
  }
}

TEST(RequestFields, SayWhatContradicts) {
  const auto refused = [](const char* body, const char* why) {
    expect_error(ErrorKind::kInvalidRequest, {why},
                 [&] { read(Endpoint::kCompletions, OrderedJson::parse(body)); });
  };
  refused(R"({"prompt": "a", "n": 2, "best_of": 3})", "best_of");
  refused(R"({"prompt": "a", "max_tokens": 2, "n_predict": 3})", "n_predict");
  refused(R"({"prompt": "a", "logprobs": 21})", "logprobs");
  refused(R"({"prompt": "a", "logprobs": 0.5})", "logprobs");
  refused(R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options");
  refused(R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": 1}})",
          "include_usage");
  refused(R"({"prompt": "a", "draft_len": 17})", "draft_len");
  refused(R"([])", "object");
  EXPECT_EQ(read(Endpoint::kCompletions,
                 OrderedJson::parse(R"({"prompt": "a", "max_tokens": 3, "n_predict": 3.0})"))
                .max_tokens,
            3);
}

TEST(RequestFields, UnknownOnesAreNamed) {
  std::vector<std::string> unknown;
  read_wanted(Endpoint::kCompletions, OrderedJson::parse(R"({"prompt": "a", "foo": 1, "bar": {}})"),
              {}, unknown);
  EXPECT_EQ(unknown, (std::vector<std::string>{"foo", "bar"}));
}

// --- prompts and messages ------------------------------------------------------------------------

TEST(Prompts, HaveFourFormsAndMixtures) {
  const auto prompts = [](const char* text) { return read_prompts(OrderedJson::parse(text)); };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(prompts(R"("a")"), (std::vector<Prompt>{{"a"}}));
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<Prompt>{{"a"}, {"b"}}));
  EXPECT_EQ(prompts("[1, 2]"), (std::vector<Prompt>{{Ids{1, 2}}}));
  EXPECT_EQ(prompts("[[1, 2], [3]]"), (std::vector<Prompt>{{Ids{1, 2}}, {Ids{3}}}));
  EXPECT_EQ(prompts(R"(["a", [3]])"), (std::vector<Prompt>{{"a"}, {Ids{3}}}));
  EXPECT_EQ(prompts(R"([1, "a", 2, 3])"), (std::vector<Prompt>{{Ids{1}, "a", Ids{2, 3}}}));
  EXPECT_EQ(prompts(R"([["a", 1], "b"])"), (std::vector<Prompt>{{"a", Ids{1}}, {"b"}}));
  for (const char* wrong : {"[]", "[[]]", "1", "{}", "[-1]", "[1.5]", "[null]", "[[null]]",
                            "[2147483648]", "[[[1]]]", "true"}) {
    expect_error(ErrorKind::kInvalidRequest, {"prompt"}, [&] { prompts(wrong); });
  }
  const OrderedJson most(std::vector<std::string>(kMostPrompts, "a"));
  EXPECT_EQ(read_prompts(most).size(), kMostPrompts);
  expect_error(ErrorKind::kInvalidRequest, {"128"},
               [&] { read_prompts(OrderedJson(std::vector<std::string>(kMostPrompts + 1, "a"))); });
}

TEST(Messages, AreMadeAlike) {
  const OrderedJson read = read_messages(OrderedJson::parse(R"([
    {"role": "developer", "content": "Be kind.", "extra": {"a": 1}},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
    {"role": "tool", "content": "42", "tool_call_id": "1"}])"));
  EXPECT_EQ(read, OrderedJson::parse(R"([
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "a\nb"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
    {"role": "tool", "content": "42", "tool_call_id": "1"}])"));
  const std::pair<const char*, const char*> wrong[] = {
      {"[]", "messages"},
      {"\"a\"", "messages"},
      {R"([1])", "messages[0]"},
      {R"([{"content": "a"}])", "messages[0].role"},
      {R"([{"role": "king", "content": "a"}])", "king"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": null}])", "messages[0].content"},
      {R"([{"role": "user", "content": 1}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "image_url"},
      {R"([{"role": "user", "content": [{"text": "a"}]}])", "messages[0].content[0]"},
      {R"([{"role": "user", "content": "a", "name": 1}])", "messages[0].name"},
  };
  for (const auto& [body, mention] : wrong) {
    expect_error(ErrorKind::kInvalidRequest, {mention},
                 [&] { read_messages(OrderedJson::parse(body)); });
  }
}

TEST(Messages, ALastOneOfTheAssistantIsContinued) {
  Wanted wanted;
  wanted.messages = OrderedJson::parse(
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}])");
  Conversation begun = conversation_of(wanted);
  EXPECT_EQ(begun.messages.size(), 1u);
  EXPECT_EQ(begun.begun, "Well");
  EXPECT_TRUE(begun.add_generation_prompt);
  wanted.add_generation_prompt = true;
  EXPECT_EQ(conversation_of(wanted).messages.size(), 2u);
  wanted.add_generation_prompt = false;
  EXPECT_EQ(conversation_of(wanted).begun, "Well");
  wanted.continue_final_message = true;
  EXPECT_EQ(conversation_of(wanted).begun, "Well");
  wanted.messages.erase(1);
  expect_error(ErrorKind::kInvalidRequest, {"continue_final_message"},
               [&] { conversation_of(wanted); });
}

TEST(Variables, AreScalarsThatAreNotTheServers) {
  EXPECT_NO_THROW(read_variables(OrderedJson::parse(R"({"enable_thinking": false, "a": "b"})")));
  for (const char* wrong :
       {R"({"messages": 1})", R"({"chat_template": "x"})", R"({"a": []})", R"({"a": {}})"}) {
    expect_error(ErrorKind::kInvalidRequest, {"chat_template_kwargs"},
                 [&] { read_variables(OrderedJson::parse(wrong)); });
  }
}

// --- bodies --------------------------------------------------------------------------------------

TEST(Body, IsStrictAndBounded) {
  EXPECT_EQ(parse_body(R"({"b": 1, "a": [1, "x", null]})").dump(), R"({"b":1,"a":[1,"x",null]})");
  const std::string deep(kMostDepth, '[');
  EXPECT_NO_THROW(parse_body(deep + std::string(kMostDepth, ']')));
  const std::pair<std::string, const char*> wrong[] = {
      {deep + "[" + std::string(kMostDepth + 1, ']'), "deeper"},
      {std::string(1'000'000, '['), "deeper"},
      {R"({"a": 1, "a": 2})", "twice"},
      {"", "byte"},
      {"{", "byte"},
      {"{} x", "byte"},
      {"{\"a\": NaN}", "byte"},
      {"{\"a\": 1e999}", "byte"},
      {"{\"a\": \"\x01\"}", "byte"},
      {"{\"a\": \"\\ud800\"}", "byte"},
      {"\"\xC0\x80\"", "UTF-8 at byte 1"},      // overlong
      {"\"\xED\xA0\x80\"", "UTF-8 at byte 1"},  // a lone surrogate
      {"\"a\xFF\"", "UTF-8 at byte 2"},
  };
  for (const auto& [body, mention] : wrong) {
    expect_error(ErrorKind::kInvalidRequest, {mention}, [&] { parse_body(body); });
  }
  std::string many = "[\"a\"";
  for (std::size_t i = 0; i < kMostValues; ++i) many += ",\"\"";
  expect_error(ErrorKind::kInvalidRequest, {"values"}, [&] { parse_body(many + "]"); });
  std::string ids = "[0";
  for (std::size_t i = 0; i < 2 * kMostValues; ++i) ids += ",1";
  EXPECT_EQ(parse_body(ids + "]").size(), 2 * kMostValues + 1);
}

TEST(Body, TakesLinearTime) {
  std::string body;
  expect_linear_time(
      5000,
      [&](std::size_t size) {
        body = "{\"a\":0";
        for (std::size_t i = 0; i < size; ++i) body += ",\"key" + std::to_string(i) + "\":{}";
        body += '}';
      },
      [&](std::size_t) { parse_body(body); });
}

// --- docs ----------------------------------------------------------------------------------------

TEST(ServerDocs, HaveTheTables) {
  std::ifstream file(std::string(QUANTSPEC_SOURCE_DIR) + "/docs/server.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& table : {fields_as_markdown(), routes_as_markdown()}) {
    EXPECT_NE(docs.find(table), docs.npos) << "docs/server.md lacks this table:\n" << table;
  }
}

}  // namespace
}  // namespace quantspec::api
