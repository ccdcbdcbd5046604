// The door: every endpoint, who may ask, what is refused and how.
#include "api/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/head.h"
#include "api/refusal.h"
#include "api/routes.h"
#include "api/test_support.h"
#include "base/error.h"

namespace quantspec::api {
namespace {

using testing::HasSubstr;
using testing::Not;

class Endpoints : public Served {};

OrderedJson small_body(const Route& route) {
  switch (*route.endpoint) {
    case Endpoint::kChat:
      return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 1}};
    case Endpoint::kCompletions:
      return {{"prompt", "Hi"}, {"max_tokens", 1}};
    case Endpoint::kApplyTemplate:
      return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    case Endpoint::kTokenize:
      return {{"prompt", "Hi"}};
    case Endpoint::kDetokenize:
      break;
  }
  return {{"tokens", {1, 2}}};
}

HttpRequest request_of(const Route& route, Headers headers = {}) {
  std::string path(route.path);
  if (path.ends_with("{id}")) path.replace(path.size() - 4, 4, "pg-24m");
  return route.endpoint ? post(path, small_body(route), std::move(headers))
                        : get(path, std::move(headers));
}

TEST_F(Endpoints, AllAnswer) {
  for (const Route& route : routes()) {
    const auto reply = ask(request_of(route));
    EXPECT_EQ(reply->status(), 200) << route.path << ": " << reply->body();
    EXPECT_FALSE(reply->header("X-Request-Id").empty()) << route.path;
    if (route.path == "/metrics" || route.path == "/") continue;
    EXPECT_THAT(reply->header("Content-Type"), HasSubstr("application/json"));
    EXPECT_TRUE(reply->json().is_object()) << route.path;
  }
}

TEST_F(Endpoints, AskForAKeyButForHealth) {
  ApiOptions options = usual();
  options.keys = {"first", "second"};
  serve(options);
  for (const Route& route : routes()) {
    const auto without = ask(request_of(route));
    const bool open = route.path == "/health" || route.path == "/v1/health" ||
                      route.path == "/healthz" || route.path == "/readyz" || route.path == "/";
    EXPECT_EQ(without->status(), open ? 200 : 401) << route.path;
    if (open) continue;
    EXPECT_EQ(without->header("WWW-Authenticate"), "Bearer");
    EXPECT_EQ(without->json()["error"]["type"], "authentication_error");
    EXPECT_EQ(ask(request_of(route, {{"Authorization", "Bearer wrong"}}))->status(), 401);
    EXPECT_EQ(ask(request_of(route, {{"Authorization", "Bearer "}}))->status(), 401);
    EXPECT_EQ(ask(request_of(route, {{"authorization", "bearer second"}}))->status(), 200);
    EXPECT_EQ(ask(request_of(route, {{"X-Api-Key", "first"}}))->status(), 200);
    EXPECT_EQ(
        ask(request_of(route, {{"Authorization", "Basic YTpi"}, {"X-Api-Key", "first"}}))->status(),
        200);
  }
  for (const char* path : {"/nothing", "/v1/embeddings", "/index.html"}) {
    EXPECT_EQ(ask(get(path))->status(), 401) << path;
  }
  api().set_keys({"third"});
  EXPECT_EQ(ask(get("/props", {{"X-Api-Key", "first"}}))->status(), 401);
  EXPECT_EQ(ask(get("/props", {{"X-Api-Key", "third"}}))->status(), 200);
  api().set_keys({});
  EXPECT_EQ(ask(get("/props"))->status(), 200);
  for (const LogLine& line : log()) {
    for (const char* key : {"first", "second", "third"})
      EXPECT_THAT(line.text, Not(HasSubstr(key)));
  }
}

TEST_F(Endpoints, MetricsCanBeOpenAndOff) {
  ApiOptions options = usual();
  options.keys = {"key"};
  options.metrics_open = true;
  serve(options);
  EXPECT_EQ(ask(get("/metrics"))->status(), 200);
  options.metrics = false;
  serve(options);
  EXPECT_EQ(ask(get("/metrics"))->status(), 501);
}

TEST_F(Endpoints, SayWhatIsNotThere) {
  EXPECT_EQ(ask(get("/nothing"))->status(), 404);
  EXPECT_THAT(ask(get("/nothing\n\x1b[2J"))->error(), HasSubstr("/v1/chat/completions"));
  EXPECT_EQ(ask(get("/nothing"))->json()["error"]["type"], "not_found_error");
  EXPECT_EQ(ask(get("/v1/models/other"))->status(), 404);
  const auto method = ask(get("/v1/completions"));
  EXPECT_EQ(method->status(), 405);
  EXPECT_EQ(method->header("Allow"), "POST, OPTIONS");
  EXPECT_EQ(ask(post("/health", OrderedJson::object()))->status(), 405);
  for (const Absent& absent : absent_routes()) {
    const auto reply = ask(post(std::string(absent.path), OrderedJson::object()));
    EXPECT_EQ(reply->status(), 501) << absent.path;
    EXPECT_EQ(reply->json()["error"]["type"], "not_supported_error");
    EXPECT_THAT(reply->error(), HasSubstr("/v1/chat/completions"));
  }
  EXPECT_EQ(ask(post("/slots/1", OrderedJson::object()))->status(), 501);
  EXPECT_EQ(ask({.method = "HEAD", .path = "/health"})->status(), 200);
  EXPECT_EQ(ask(get("/health/"))->status(), 200);
}

TEST_F(Endpoints, RefuseBodiesThatAreNoJson) {
  HttpRequest request = post("/tokenize", OrderedJson{{"prompt", "a"}});
  request.headers = {{"Content-Type", "text/plain"}};
  EXPECT_EQ(ask(request)->status(), 415);
  request.headers = {};
  EXPECT_EQ(ask(request)->status(), 415);
  request.headers = {{"Content-Type", "Application/JSON; charset=utf-8"}};
  EXPECT_EQ(ask(request)->status(), 200);
  request.headers.emplace_back("Content-Encoding", "gzip");
  EXPECT_EQ(ask(request)->status(), 415);
  EXPECT_EQ(ask(post("/tokenize", std::string("{")))->status(), 400);
  EXPECT_EQ(ask(post("/tokenize", std::string("{\"a\": \"\xFF\"}")))->status(), 400);

  ApiOptions options = usual();
  options.max_body = 100;
  serve(options);
  EXPECT_EQ(ask(post("/tokenize", OrderedJson{{"prompt", std::string(100, 'a')}}))->status(), 413);
}

// A server may ask before it reads a body.
TEST_F(Endpoints, RefuseByTheHeadAlone) {
  ApiOptions options = usual();
  options.keys = {"key"};
  options.max_body = 100;
  serve(options);
  const auto wants = [&](HttpRequest head, int status) {
    const auto reply = std::make_shared<FakeReply>();
    head.body.clear();
    const bool wanted = api().wants_body(std::move(head), reply);
    EXPECT_EQ(wanted, status == 0);
    if (status != 0) reply->wait();
    EXPECT_EQ(reply->status(), status);
  };
  const Headers key = {{"X-Api-Key", "key"}};
  wants(post("/tokenize", OrderedJson::object()), 401);
  wants(post("/tokenize", OrderedJson::object(), key), 0);
  wants(post("/tokenize", OrderedJson::object(), {{"X-Api-Key", "key"}, {"Content-Length", "101"}}),
        413);
  wants(get("/props", key), 0);  // it takes time, so it is not answered at once
  wants(get("/version", key), 200);
  wants(get("/nothing", key), 404);
}

TEST_F(Endpoints, ReflectListedOriginsAlone) {
  EXPECT_EQ(ask(get("/health", {{"Origin", "http://a"}}))->header("Access-Control-Allow-Origin"),
            "");
  ApiOptions options = usual();
  options.cors_origins = {"http://a"};
  options.keys = {"key"};
  serve(options);
  const auto allowed = [&](const char* origin, const char* method) {
    const auto reply =
        ask({.method = method, .path = "/v1/models", .headers = {{"Origin", origin}}});
    return std::pair(reply->status(), reply->header("Access-Control-Allow-Origin"));
  };
  EXPECT_EQ(allowed("http://a", "OPTIONS"), std::pair(200, std::string("http://a")));
  EXPECT_EQ(allowed("http://b", "OPTIONS"), std::pair(200, std::string()));
  EXPECT_EQ(allowed("http://a", "GET"), std::pair(401, std::string("http://a")));
  const auto first =
      ask({.method = "OPTIONS", .path = "/v1/completions", .headers = {{"Origin", "http://a"}}});
  EXPECT_THAT(first->header("Access-Control-Allow-Headers"), HasSubstr("Authorization"));
  EXPECT_EQ(first->header("Vary"), "Origin");
  options.cors_origins = {"localhost"};
  serve(options);
  for (const char* own :
       {"http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:1"}) {
    EXPECT_EQ(allowed(own, "OPTIONS").second, own);
  }
  for (const char* other : {"http://localhost.evil.com", "http://notlocalhost", "http://localhost:",
                            "http://localhost:80x", "http://localhost@evil.com", "null"}) {
    EXPECT_EQ(allowed(other, "OPTIONS").second, "") << other;
  }
}

TEST_F(Endpoints, EchoIdsAndTraces) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const auto reply = ask(get("/health", {{"X-Request-Id", "abc-1"}, {"traceparent", trace}}));
  EXPECT_EQ(reply->header("X-Request-Id"), "abc-1");
  EXPECT_EQ(reply->header("traceparent"), trace);
  for (const char* bad : {"a b", "a\r\nb", "", "\xFF"}) {
    const std::string id = ask(get("/health", {{"X-Request-Id", bad}}))->header("X-Request-Id");
    EXPECT_EQ(id.size(), 32u) << bad;
  }
  EXPECT_EQ(ask(get("/health", {{"traceparent", trace + "0"}}))->header("traceparent"), "");
}

TEST_F(Endpoints, SayWhetherTheyAreReady) {
  EXPECT_EQ(ask(get("/readyz"))->json()["status"], "ok");
  const auto reply = std::make_shared<FakeReply>();
  answer_while_loading(get("/health"), *reply);
  EXPECT_EQ(reply->status(), 503);
  EXPECT_EQ(reply->json(), OrderedJson::parse(R"({"error": {"message": "Loading model",
    "type": "unavailable_error", "param": null, "code": 503}})"));
  const auto alive = std::make_shared<FakeReply>();
  answer_while_loading(get("/healthz"), *alive);
  EXPECT_EQ(alive->status(), 200);
  api().drain();
  EXPECT_EQ(ask(get("/readyz"))->status(), 503);
  EXPECT_EQ(ask(get("/health"))->status(), 503);
  EXPECT_EQ(ask(get("/healthz"))->status(), 200);
  const auto late = ask(post("/v1/completions", OrderedJson{{"prompt", "a"}}));
  EXPECT_EQ(late->status(), 503);
  EXPECT_EQ(late->json()["error"]["type"], "unavailable_error");
  EXPECT_EQ(ask(post("/tokenize", OrderedJson{{"prompt", "a"}}))->status(), 200);
}

TEST_F(Endpoints, TellOfTheModel) {
  const OrderedJson models = ask(get("/v1/models"))->json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "pg-24m");
  EXPECT_EQ(models["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(ask(get("/v1/models/pg-24m"))->json(), models["data"][0]);
  const OrderedJson props = ask(get("/props"))->json();
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 2048);
  EXPECT_EQ(props["sampling"]["temperature"],
            OrderedJson::parse(R"({"value": 1.0, "from": "server"})"));
  EXPECT_EQ(props["system_fingerprint"], api().fingerprint());
  EXPECT_EQ(api().fingerprint()[0], 'b');
  EXPECT_EQ(api().fingerprint().size(), 33u);
  EXPECT_EQ(ask(get("/version"))->json()["version"], "1.2.3");
  const auto sampling = log_with("sampling, where a request does not say");
  ASSERT_EQ(sampling.size(), 1u);
  EXPECT_FALSE(sampling[0].is_failure);
}

TEST_F(Endpoints, AnEngineThatDoesNotMoveIsAFailureInTheLog) {
  ApiOptions options = usual();
  options.watchdog = 0;  // none moves as fast
  serve(options);
  EXPECT_TRUE(wait_until([&] { return !api().healthy(); }));
  EXPECT_TRUE(wait_until([&] { return !log_with("the engine has not moved").empty(); }));
  EXPECT_TRUE(log_with("the engine has not moved")[0].is_failure);
}

TEST_F(Endpoints, TokensThereAndBack) {
  const Tokenizer& tokenizer = test_engine().tokenizer();
  const std::string text = "It was a d\xC3\xA4rk night, \xF0\x9F\x98\x80";
  const OrderedJson llama = answer("/tokenize", {{"content", text}});
  EXPECT_EQ(llama["tokens"], OrderedJson(tokenizer.encode(text, false)));
  const OrderedJson vllm = answer("/tokenize", {{"prompt", text}, {"return_token_strs", true}});
  EXPECT_EQ(vllm["tokens"], OrderedJson(tokenizer.encode(text, true)));
  EXPECT_EQ(vllm["count"], vllm["tokens"].size());
  EXPECT_EQ(vllm["token_strs"].size(), vllm["tokens"].size());
  const OrderedJson pieces = answer("/tokenize", {{"content", text}, {"with_pieces", true}});
  EXPECT_EQ(pieces["tokens"][0]["id"], llama["tokens"][0]);
  EXPECT_EQ(answer("/detokenize", {{"tokens", llama["tokens"]}})["content"], text);
  EXPECT_EQ(ask(post("/detokenize", OrderedJson{{"tokens", {1 << 30}}}))->status(), 400);
  EXPECT_EQ(ask(post("/tokenize", OrderedJson::object()))->status(), 400);
  const OrderedJson chat = OrderedJson::parse(R"([{"role": "user", "content": "Hi"}])");
  EXPECT_EQ(answer("/apply-template", {{"messages", chat}})["prompt"], "user: Hi\nassistant:");
  EXPECT_EQ(
      answer("/apply-template", {{"messages", chat}, {"add_generation_prompt", false}})["prompt"],
      "user: Hi\n");
  EXPECT_EQ(answer("/apply-template", {{"messages", chat},
                                       {"chat_template_kwargs", {{"mood", "fine"}}},
                                       {"tools", {{{"name", "f"}}}}})["prompt"],
            "user: Hi\ntools: [{\"name\":\"f\"}]\nmood: fine\nassistant:");
  EXPECT_EQ(answer("/tokenize", {{"messages", chat}})["tokens"],
            OrderedJson(tokenizer.encode("user: Hi\nassistant:", false)));
}

TEST_F(Endpoints, TokensThatAnswerAreBounded) {
  std::string ids = "{\"tokens\": [1";
  for (int i = 0; i < 1'000'000; ++i) ids += ",1";
  const auto reply = ask(post("/detokenize", ids + "]}"));
  EXPECT_EQ(reply->status(), 400);
  EXPECT_THAT(reply->error(), HasSubstr("1000001 tokens; at most 1000000"));
  EXPECT_EQ(reply->json()["error"]["param"], "tokens");
  std::string text;
  for (int i = 0; i < 1'000'001; ++i) text += " a";
  EXPECT_EQ(ask(post("/tokenize", OrderedJson{{"content", text}}))->json()["error"]["param"],
            "content");
}

TEST_F(Endpoints, WithoutATemplateAChatSaysWhatWorks) {
  ApiOptions options = usual();
  options.apply_template = {};
  serve(options);
  const OrderedJson chat = OrderedJson::parse(R"([{"role": "user", "content": "Hi"}])");
  const auto reply = ask(post("/v1/chat/completions", OrderedJson{{"messages", chat}}));
  EXPECT_EQ(reply->status(), 400);
  EXPECT_THAT(reply->error(), HasSubstr("use /v1/completions"));
  EXPECT_EQ(reply->json()["error"]["param"], "messages");
}

TEST_F(Endpoints, DescribeThemselves) {
  const OrderedJson api = ask(get("/openapi.json"))->json();
  for (const Route& route : routes()) {
    const OrderedJson& at = api["paths"][std::string(route.path)];
    const OrderedJson& operation = at[route.method == "GET" ? "get" : "post"];
    EXPECT_TRUE(operation.contains("responses")) << route.path;
    EXPECT_EQ(operation.contains("requestBody"), route.endpoint.has_value()) << route.path;
  }
  const OrderedJson& fields = api["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
                                 ["application/json"]["schema"]["properties"];
  EXPECT_EQ(fields["n"]["maximum"], 16);
  EXPECT_EQ(fields["seed"]["maximum"], std::numeric_limits<std::uint64_t>::max());
}

TEST_F(Endpoints, UnknownFieldsAreNamedOnceOrRefused) {
  const OrderedJson body = {{"prompt", "a"}, {"new\nfield", 1}};
  for (int i = 0; i < 3; ++i) answer("/tokenize", body);
  EXPECT_EQ(log_with("new\\nfield").size(), 1u) << log().back().text;
  ApiOptions options = usual();
  options.strict = true;
  serve(options);
  const auto reply = ask(post("/tokenize", body));
  EXPECT_EQ(reply->status(), 400);
  EXPECT_EQ(reply->json()["error"]["param"], "new\nfield");
}

// What a server refuses by itself looks as what this refuses does.
TEST(Refusals, AreJsonForServersToo) {
  EXPECT_EQ(OrderedJson::parse(error_body(431, "too\nlong")),
            OrderedJson::parse(R"({"error": {"message": "too\\nlong",
              "type": "invalid_request_error", "param": null, "code": 431}})"));
}

// Each kind has its status, and what is our fault says nothing of this machine.
TEST(Refusals, FollowFromErrors) {
  const auto status = [](ErrorKind kind) {
    return refusal_of(Error(kind, "/secret/file: broken"), "id-1");
  };
  EXPECT_EQ(status(ErrorKind::kInvalidRequest).status, 400);
  EXPECT_EQ(status(ErrorKind::kOutOfMemory).status, 503);
  EXPECT_EQ(status(ErrorKind::kUnsupportedModel).status, 501);
  for (const ErrorKind kind : {ErrorKind::kCorruptFile, ErrorKind::kDevice, ErrorKind::kInternal}) {
    const Refusal refusal = status(kind);
    EXPECT_EQ(refusal.status, 500);
    EXPECT_THAT(refusal.message, HasSubstr("id-1"));
    EXPECT_THAT(refusal.message, Not(HasSubstr("secret")));
    EXPECT_EQ(refusal.json()["error"]["type"], "server_error");
  }
}

}  // namespace
}  // namespace quantspec::api
