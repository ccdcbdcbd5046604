// Requests of generation: answers, streams, refusals, and that each is the same as alone.
#include "api/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/completion_test_support.h"
#include "engine/request_loop.h"

namespace quantspec::api {
namespace {

using testing::HasSubstr;
using testing::Not;

GenerateResult alone(GenerateOptions options, std::string_view prompt = kPrompt) {
  options.draft_len = 0;
  return test_engine().create_session()->generate(prompt, options);
}

TEST_F(Completions, GreedyTextIsASessions) {
  GenerateOptions options;
  options.predict = 24;
  options.sampling.temperature = 0;
  const GenerateResult expected = alone(options);
  const OrderedJson reply = answer(kText, body());
  EXPECT_EQ(reply["choices"][0]["text"], expected.text);
  EXPECT_EQ(reply["choices"][0]["finish_reason"],
            expected.stop_reason == StopReason::kLength ? "length" : "stop");
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "pg-24m");
  EXPECT_EQ(reply["system_fingerprint"], api().fingerprint());
  EXPECT_TRUE(reply["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(reply["usage"]["prompt_tokens"], expected.prompt_tokens);
  EXPECT_EQ(reply["usage"]["completion_tokens"], expected.tokens.size());
  EXPECT_EQ(reply["usage"]["total_tokens"], expected.prompt_tokens + expected.tokens.size());
  EXPECT_TRUE(reply["usage"]["prompt_tokens_details"].contains("cached_tokens"));
  EXPECT_EQ(reply["timings"]["predicted_n"], expected.tokens.size());
  EXPECT_TRUE(reply["metrics"]["speculative_decoding"].contains("accepted"));
  for (const char* path : {"/completions", kText}) {
    EXPECT_EQ(answer(path, body())["choices"][0]["text"], expected.text);
  }
  for (const int draft_len : {0, 1, 5, 16}) {
    EXPECT_EQ(text_of({{"draft_len", draft_len}}), expected.text) << draft_len;
  }
}

TEST_F(Completions, AChatIsItsTemplatesText) {
  const OrderedJson reply = answer(kChat, chat());
  const OrderedJson& choice = reply["choices"][0];
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_TRUE(reply["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(choice["message"]["role"], "assistant");
  const auto ids = test_engine().tokenizer().encode("user: Who goes there?\nassistant:", false);
  const OrderedJson expected =
      answer(kText, {{"prompt", ids}, {"max_tokens", 16}, {"temperature", 0}});
  EXPECT_EQ(choice["message"]["content"], expected["choices"][0]["text"]);
  OrderedJson begun = chat();
  begun["messages"].push_back({{"role", "assistant"}, {"content", " It is"}});
  const auto more =
      test_engine().tokenizer().encode("user: Who goes there?\nassistant: It is", false);
  EXPECT_EQ(
      answer(kChat, begun)["choices"][0]["message"]["content"],
      answer(kText,
             {{"prompt", more}, {"max_tokens", 16}, {"temperature", 0}})["choices"][0]["text"]);
}

// Put together, what a stream told is the answer in one piece.
TEST_F(Completions, StreamsAreTheWholeInPieces) {
  const OrderedJson more = {{"seed", 7}, {"temperature", 1.2}, {"n", 3}, {"max_tokens", 40}};
  OrderedJson streamed = more;
  streamed["stream"] = true;
  for (const bool is_chat : {false, true}) {
    const char* path = is_chat ? kChat : kText;
    const auto make = [&](const OrderedJson& with) { return is_chat ? chat(with) : body(with); };
    const OrderedJson whole = answer(path, make(more));
    const auto reply = ask(post(path, make(streamed)));
    EXPECT_EQ(reply->status(), 200);
    EXPECT_THAT(reply->header("Content-Type"), HasSubstr("text/event-stream"));
    EXPECT_EQ(reply->header("Cache-Control"), "no-store");
    EXPECT_EQ(reply->header("X-Accel-Buffering"), "no");
    EXPECT_EQ(reply->events().back(), "[DONE]");
    const auto texts = reply->texts();
    ASSERT_EQ(texts.size(), 3u);
    for (const OrderedJson& choice : whole["choices"]) {
      const OrderedJson& expected = is_chat ? choice["message"]["content"] : choice["text"];
      EXPECT_EQ(texts.at(choice["index"].get<int>()), expected.get<std::string>());
    }
  }
}

TEST_F(Completions, StreamsHaveOpenAIsShape) {
  const auto reply = ask(post(kChat, chat({{"stream", true},
                                           {"max_tokens", 5},
                                           {"ignore_eos", true},
                                           {"stream_options", {{"include_usage", true}}}})));
  std::vector<OrderedJson> chunks;
  for (const std::string& event : reply->events()) {
    if (event != "[DONE]") chunks.push_back(OrderedJson::parse(event));
  }
  ASSERT_GE(chunks.size(), 4u);
  for (const OrderedJson& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_EQ(chunk["system_fingerprint"], api().fingerprint());
    EXPECT_TRUE(chunk.contains("usage"));
  }
  EXPECT_EQ(chunks[0]["choices"][0]["delta"],
            OrderedJson::parse(R"({"role": "assistant", "content": null})"));
  const OrderedJson& finish = chunks[chunks.size() - 2]["choices"][0];
  EXPECT_EQ(finish["delta"], OrderedJson::object());
  EXPECT_EQ(finish["finish_reason"], "length");
  EXPECT_EQ(chunks.back()["choices"], OrderedJson::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 5);
  EXPECT_TRUE(chunks.back().contains("timings"));
  for (std::size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_TRUE(chunks[i]["usage"].is_null());

  const auto counted =
      ask(post(kText, body({{"stream", true},
                            {"max_tokens", 5},
                            {"stream_options", {{"continuous_usage_stats", true}}}})));
  int last = 0;
  for (const std::string& event : counted->events()) {
    if (event == "[DONE]") continue;
    const int tokens = OrderedJson::parse(event)["usage"]["completion_tokens"].get<int>();
    EXPECT_GE(tokens, last);
    last = tokens;
  }
  EXPECT_EQ(last, 5);
}

// The headline: a seed repeats an answer, whatever else runs and however it is drafted.
TEST_F(Completions, ASeedRepeatsAnAnswerInAnyCompany) {
  const auto seeded = [](int draft_len) {
    OrderedJson more = {{"seed", 11}, {"temperature", 0.9}, {"max_tokens", 48}};
    if (draft_len >= 0) more["draft_len"] = draft_len;
    return body(more);
  };
  GenerateOptions options;
  options.predict = 48;
  options.sampling.temperature = 0.9f;
  options.sampling.seed = 11;
  options.spec_sampling = SpecSampling::kCoupled;
  const std::string expected = alone(options).text;
  std::vector<std::shared_ptr<FakeReply>> replies;
  for (int i = 0; i < 8; ++i) replies.push_back(send(post(kText, seeded(i % 4 - 1))));
  for (const auto& reply : replies) {
    ASSERT_TRUE(reply->wait());
    EXPECT_EQ(reply->json()["choices"][0]["text"], expected);
  }
}

TEST_F(Completions, ChoicesHaveSeedsThatFollow) {
  const OrderedJson more = {{"temperature", 1.0}, {"max_tokens", 20}};
  const auto one = [&](int seed) {
    OrderedJson with = more;
    with["seed"] = seed;
    return text_of(with);
  };
  OrderedJson two = more;
  two["n"] = 2;
  two["seed"] = 5;
  two["prompt"] = {kPrompt, "The king"};
  const OrderedJson reply = answer(kText, body(two));
  ASSERT_EQ(reply["choices"].size(), 4u);
  EXPECT_EQ(reply["choices"][0]["text"], one(5));
  EXPECT_EQ(reply["choices"][1]["text"], one(6));
  OrderedJson king = more;
  king["seed"] = 6;
  king["prompt"] = "The king";
  EXPECT_EQ(reply["choices"][3]["text"], text_of(king));
  EXPECT_EQ(reply["choices"][3]["index"], 3);
}

TEST_F(Completions, PromptsOfAllFormsAreTheSame) {
  const Tokenizer& tokenizer = test_engine().tokenizer();
  const auto ids = tokenizer.encode(kPrompt, true);
  const std::string expected = text_of({});
  EXPECT_EQ(text_of({{"prompt", ids}}), expected);
  EXPECT_EQ(text_of({{"prompt", OrderedJson::array({kPrompt})}}), expected);
  EXPECT_EQ(text_of({{"prompt", OrderedJson::array({OrderedJson(ids)})}}), expected);
  OrderedJson mixed = OrderedJson::array({kPrompt});
  mixed.push_back(300);
  OrderedJson plain = ids;
  plain.push_back(300);
  EXPECT_EQ(text_of({{"prompt", mixed}}), text_of({{"prompt", plain}}));
}

TEST_F(Completions, EchoStopAndTokens) {
  const std::string whole = text_of({});
  EXPECT_EQ(text_of({{"echo", true}}), kPrompt + whole);
  EXPECT_EQ(ask(post(kText, body({{"echo", true}, {"stream", true}})))->texts().at(0),
            kPrompt + whole);
  const std::string stop = whole.substr(whole.size() / 2, 3);
  const OrderedJson stopped = answer(kText, body({{"stop", stop}}));
  EXPECT_EQ(stopped["choices"][0]["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(text_of({{"stop", OrderedJson::array({"\x01never", stop})}}),
            whole.substr(0, whole.find(stop)));
  const OrderedJson tokens = answer(kText, body({{"return_tokens", true}}))["choices"][0]["tokens"];
  EXPECT_EQ(tokens.size(), 24u);
  OrderedJson streamed = OrderedJson::array();
  for (const std::string& event :
       ask(post(kText, body({{"return_tokens", true}, {"stream", true}})))->events()) {
    if (event == "[DONE]") continue;
    const OrderedJson choice = OrderedJson::parse(event)["choices"][0];
    if (!choice.contains("tokens")) continue;
    for (const OrderedJson& id : choice["tokens"]) streamed.push_back(id);
  }
  EXPECT_EQ(streamed, tokens);
  const OrderedJson by_id = answer(kText, body({{"stop_token_ids", {tokens[3]}}}));
  EXPECT_EQ(by_id["choices"][0]["finish_reason"], "stop");
  EXPECT_LE(by_id["usage"]["completion_tokens"], 4);
}

TEST_F(Completions, LogProbabilitiesAreTheEngines) {
  GenerateOptions options;
  options.predict = 24;
  options.sampling.temperature = 0;
  options.log_probs = true;
  const GenerateResult expected = alone(options);
  const OrderedJson text = answer(kText, body({{"logprobs", 1}}))["choices"][0]["logprobs"];
  EXPECT_EQ(text["token_logprobs"], OrderedJson(expected.log_probs));
  EXPECT_EQ(text["top_logprobs"].size(), expected.tokens.size());
  EXPECT_EQ(text["text_offset"].size(), expected.tokens.size());
  EXPECT_TRUE(
      answer(kText, body({{"logprobs", 0}}))["choices"][0]["logprobs"]["top_logprobs"].is_null());
  EXPECT_TRUE(answer(kText, body())["choices"][0]["logprobs"].is_null());
  const OrderedJson whole = answer(kChat, chat({{"logprobs", true}, {"top_logprobs", 0}}));
  const OrderedJson& content = whole["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content.size(), whole["usage"]["completion_tokens"]);
  std::vector<OrderedJson> streamed;
  for (const std::string& event :
       ask(post(kChat, chat({{"logprobs", true}, {"stream", true}})))->events()) {
    if (event == "[DONE]") continue;
    const OrderedJson log_probs = OrderedJson::parse(event)["choices"][0]["logprobs"];
    if (log_probs.is_null()) continue;
    for (const OrderedJson& one : log_probs["content"]) streamed.push_back(one);
  }
  EXPECT_EQ(OrderedJson(streamed), content);
}

TEST_F(Completions, TheLikeliestComeWithLogProbabilities) {
  const OrderedJson chosen = {{"temperature", 1.2}, {"seed", 4}};
  OrderedJson more = chosen;
  more["top_logprobs"] = 4;
  const OrderedJson whole = answer(kChat, chat(more));
  for (const OrderedJson& one : whole["choices"][0]["logprobs"]["content"]) {
    ASSERT_EQ(one["top_logprobs"].size(), 4u);
    EXPECT_GE(one["top_logprobs"][0]["logprob"], one["top_logprobs"][1]["logprob"]);
    EXPECT_GE(one["top_logprobs"][0]["logprob"], one["logprob"]);
    EXPECT_TRUE(one["top_logprobs"][3]["bytes"].is_array());
  }
  more = chosen;
  more["logprobs"] = 4;
  const OrderedJson text = answer(kText, body(more))["choices"][0]["logprobs"];
  for (std::size_t i = 0; i < text["tokens"].size(); ++i) {
    const OrderedJson& top = text["top_logprobs"][i];
    EXPECT_GE(top.size(), 4u);
    EXPECT_LE(top.size(), 5u);
    EXPECT_EQ(top[text["tokens"][i].get<std::string>()], text["token_logprobs"][i]);
  }
}

// As evaluation harnesses ask for it.
TEST_F(Completions, AnEchoedPromptHasItsLogProbabilities) {
  const OrderedJson more = {{"prompt", "It was a dark night"},
                            {"echo", true},
                            {"max_tokens", 1},
                            {"temperature", 0},
                            {"logprobs", 1}};
  const OrderedJson reply = answer(kText, body(more));
  const OrderedJson& choice = reply["choices"][0];
  const OrderedJson& told = choice["logprobs"];
  const std::size_t prompt = reply["usage"]["prompt_tokens"];
  ASSERT_EQ(told["tokens"].size(), prompt + 1);
  ASSERT_EQ(told["token_logprobs"].size(), prompt + 1);
  ASSERT_EQ(told["top_logprobs"].size(), prompt + 1);
  EXPECT_TRUE(told["token_logprobs"][0].is_null());
  EXPECT_TRUE(told["top_logprobs"][0].is_null());
  EXPECT_EQ(told["text_offset"][0], 0);
  for (std::size_t i = 1; i <= prompt; ++i) {
    EXPECT_LE(told["token_logprobs"][i], 0);
    const OrderedJson& top = told["top_logprobs"][i];
    EXPECT_EQ(top[told["tokens"][i].get<std::string>()], told["token_logprobs"][i]);
    // The echoed text lacks the space that the tokenizer puts before the first word.
    const std::size_t at = told["text_offset"][i];
    const std::string token = told["tokens"][i];
    const std::size_t lacks = at == 0 && token[0] == ' ' ? 1 : 0;
    EXPECT_EQ(choice["text"].get<std::string>().substr(at, token.size() - lacks),
              token.substr(lacks));
  }
  EXPECT_EQ(choice["text"].get<std::string>().find("It was a dark night"), 0u);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  OrderedJson streamed = more;
  streamed["stream"] = true;
  OrderedJson tokens = OrderedJson::array();
  std::string text;
  for (const std::string& event : ask(post(kText, body(streamed)))->events()) {
    if (event == "[DONE]") continue;
    const OrderedJson one = OrderedJson::parse(event)["choices"][0];
    text += one["text"].get<std::string>();
    if (one["logprobs"].is_null()) continue;
    for (const OrderedJson& number : one["logprobs"]["token_logprobs"]) tokens.push_back(number);
  }
  EXPECT_EQ(tokens, told["token_logprobs"]);
  EXPECT_EQ(text, choice["text"]);
}

// Whatever others have had read, by whatever salt.
TEST_F(Completions, AnEchoedPromptIsReadAlone) {
  std::string prompt;
  for (int i = 0; i < 400; ++i) prompt += "word" + std::to_string(i) + " ";
  OrderedJson more = {{"prompt", prompt}, {"max_tokens", 1}, {"cache_salt", "x"}};
  answer(kText, body(more));
  EXPECT_GT(answer(kText, body(more))["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  more["echo"] = true;
  more["logprobs"] = 0;
  const OrderedJson reply = answer(kText, body(more));
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(answer(kText, body(more))["choices"][0]["logprobs"], reply["choices"][0]["logprobs"]);
}

// Each event has its own tokens' alone.
TEST_F(Completions, StreamedLogProbabilitiesOfTextsAreTheWholes) {
  const OrderedJson whole = answer(kText, body({{"logprobs", 1}}))["choices"][0]["logprobs"];
  OrderedJson told = {{"tokens", OrderedJson::array()},
                      {"token_logprobs", OrderedJson::array()},
                      {"top_logprobs", OrderedJson::array()},
                      {"text_offset", OrderedJson::array()}};
  for (const std::string& event :
       ask(post(kText, body({{"logprobs", 1}, {"stream", true}})))->events()) {
    if (event == "[DONE]") continue;
    const OrderedJson log_probs = OrderedJson::parse(event)["choices"][0]["logprobs"];
    if (log_probs.is_null()) continue;
    for (auto& [name, list] : told.items()) {
      for (const OrderedJson& one : log_probs[name]) list.push_back(one);
    }
  }
  EXPECT_EQ(told, whole);
}

// A character of several tokens comes whole, in one event.
TEST_F(Completions, EveryEventIsValidUtf8) {
  OrderedJson more = {{"prompt", "\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\xF0\x9F\x98\x80"},
                      {"temperature", 20.0},
                      {"seed", 3},
                      {"max_tokens", 200},
                      {"ignore_eos", true}};
  const std::string whole = text_of(more);
  more["stream"] = true;
  const auto reply = ask(post(kText, body(more)));
  EXPECT_EQ(reply->texts().at(0), whole);
}

TEST_F(Completions, BiasesAndPenaltiesChangeWhatIsChosen) {
  const OrderedJson plain = {{"max_tokens", 12}, {"temperature", 0}, {"ignore_eos", true}};
  const std::string text = text_of(plain);
  const auto with = [&](std::string_view name, std::string_view value) {
    OrderedJson more = plain;
    more[std::string(name)] = OrderedJson::parse(value);
    return text_of(more);
  };
  OrderedJson forced = plain;
  forced["logit_bias"] = {{"300", 100}};
  forced["return_tokens"] = true;
  EXPECT_EQ(answer(kText, body(forced))["choices"][0]["tokens"],
            OrderedJson(std::vector<int>(12, 300)));
  EXPECT_EQ(with("logit_bias", R"({"300": 100})"), with("logit_bias", "[[300, 100]]"));
  EXPECT_NE(with("logit_bias", R"({"300": 100})"), text);
  EXPECT_EQ(with("logit_bias", R"({})"), text);
  OrderedJson forbidden = plain;
  forbidden["return_tokens"] = true;
  const auto first_token = [&] {
    return answer(kText, body(forbidden))["choices"][0]["tokens"][0].get<TokenId>();
  };
  const TokenId first = first_token();
  forbidden["logit_bias"] = {{first, false}};
  EXPECT_NE(first_token(), first);
  EXPECT_NE(with("presence_penalty", "-2"), with("presence_penalty", "2"));
  EXPECT_NE(with("frequency_penalty", "-2"), with("frequency_penalty", "2"));
  EXPECT_EQ(with("frequency_penalty", "0"), text);
}

// --- refusals ------------------------------------------------------------------------------------

TEST_F(Completions, RefusalsNameTheirField) {
  refused(kText, body({{"n", 17}}), 400, "n");
  refused(kText, body({{"temperature", -1}}), 400, "temperature");
  refused(kText, body({{"presence_penalty", 2.5}}), 400, "presence_penalty");
  refused(kText, body({{"frequency_penalty", -2.5}}), 400, "frequency_penalty");
  refused(kText, body({{"min_tokens", 6}, {"max_tokens", 5}}), 400, "min_tokens");
  for (const char* bias :
       {R"({"1": 101})", R"({"1": true})", R"({"one": 1})", R"({"1 ": 1})", R"({"-1": 1})",
        R"({"99999999999": 1})", R"({"1000000": 1})", R"({"1": 1, "01": 1})", R"([[1, 2, 3]])",
        R"([["a", 2]])", R"([1])", R"("1")", R"([[1, 2], [1, 3]])"}) {
    refused(kText, body({{"logit_bias", OrderedJson::parse(bias)}}), 400, "logit_bias");
  }
  OrderedJson biases;
  for (int id = 0; id < 301; ++id) biases[std::to_string(id)] = 1;
  refused(kText, body({{"logit_bias", biases}}), 400, "logit_bias");
  refused(kText, body({{"response_format", {{"type", "json_object"}}}}), 400, "response_format");
  refused(kChat, chat({{"tools", {{{"type", "function"}}}}}), 400, "tools");
  refused(kChat, chat({{"logprobs", true}, {"top_logprobs", 21}}), 400, "top_logprobs");
  refused(kText, body({{"logprobs", 21}}), 400, "logprobs");
  refused(kText, body({{"prompt", ""}, {"add_special_tokens", false}}), 400, "prompt");
  refused(kText, body({{"prompt", {1 << 29}}}), 400, "prompt");
  refused(kText, {{"max_tokens", 1}}, 400, "prompt");
  refused(kChat, {{"max_tokens", 1}}, 400, "messages");
  OrderedJson many = body({{"n", 16}});
  many["prompt"] = std::vector<std::string>(9, "a");
  refused(kText, many, 400, "n");
}

TEST_F(Completions, APromptThatIsTooLongSaysBy) {
  for (const std::size_t words : {3000u, 100'000u}) {
    std::string prompt;
    for (std::size_t i = 0; i < words; ++i) prompt += " night";
    const auto reply = ask(post(kText, body({{"prompt", prompt}})));
    EXPECT_EQ(reply->status(), 400);
    const OrderedJson error = reply->json()["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_GT(error["n_prompt_tokens"], 2048);
    EXPECT_EQ(error["n_ctx"], 2048);
  }
}

TEST_F(Completions, FullMeansAskAgain) {
  ApiOptions options = usual();
  options.max_requests = 1;
  serve(options);
  const auto first = send(post(kText, body({{"max_tokens", 400}, {"stream", true}})));
  ASSERT_TRUE(first->wait_for_pieces(1));
  const auto second = ask(post(kText, body()));
  EXPECT_EQ(second->status(), 429);
  EXPECT_EQ(second->json()["error"]["type"], "rate_limit_error");
  const int seconds = std::stoi(second->header("Retry-After"));
  EXPECT_GE(seconds, 1);
  EXPECT_LE(seconds, 60);
  first->go();
  EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  EXPECT_EQ(ask(post(kText, body()))->status(), 200);

  options.max_requests = 10;
  options.max_prompt_tokens = 12;
  serve(options);
  const auto third = send(post(kText, body({{"max_tokens", 400}, {"stream", true}})));
  ASSERT_TRUE(third->wait_for_pieces(1));
  EXPECT_EQ(ask(post(kText, body()))->status(), 429);
  third->go();
}

// The engine's own queue is bounded, too; what of a refused request was in it leaves it again.
TEST_F(Completions, AFullEngineMeansAskAgain) {
  OrderedJson many = body({{"n", 16}, {"max_tokens", 900}, {"ignore_eos", true}});
  many["prompt"] = std::vector<std::string>(8, kPrompt);
  std::vector<std::shared_ptr<FakeReply>> replies;
  for (int i = 0; i < 12; ++i) replies.push_back(send(post(kText, many)));
  const auto refusals = [&] {
    return std::ranges::count_if(replies, [](const auto& reply) { return reply->status() == 429; });
  };
  EXPECT_TRUE(wait_until([&] { return refusals() >= 4; }));
  for (const auto& reply : replies) {
    if (reply->status() == 429) {
      EXPECT_NE(reply->header("Retry-After"), "");
    } else {
      EXPECT_EQ(reply->status(), 0);
      reply->go();
    }
  }
  EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  EXPECT_TRUE(wait_until([] {
    const auto s = test_engine().requests()->statistics();
    return s.scheduler.admitted == 0 && s.scheduler.waiting == 0;
  }));
}

TEST_F(Completions, ATemplateThatRefusesIsABadRequest) {
  ApiOptions options = usual();
  options.apply_template = [](const auto&, const auto&, bool, const auto&) -> std::string {
    fail(ErrorKind::kInvalidRequest, "the template says: roles must alternate");
  };
  serve(options);
  EXPECT_THAT(refused(kChat, chat(), 400, nullptr), HasSubstr("alternate"));
  options.apply_template = [](const auto&, const auto&, bool, const auto&) -> std::string {
    throw std::runtime_error("secret");
  };
  serve(options);
  EXPECT_THAT(refused(kChat, chat(), 500, nullptr), Not(HasSubstr("secret")));
  const auto lines = log_with("secret");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].is_failure);
}

// --- what is told to others ----------------------------------------------------------------------

TEST_F(Completions, KeysDoNotSeeEachOthersPrompts) {
  ApiOptions options = usual();
  options.keys = {"one", "two"};
  serve(options);
  std::string prompt;
  for (int i = 0; i < 1200; ++i) prompt += " night";
  const auto cached = [&](const char* key, OrderedJson more) {
    more["prompt"] = prompt;
    more["max_tokens"] = 1;
    const auto reply = ask(post(kText, body(more), {{"X-Api-Key", key}}));
    return reply->json()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("one", OrderedJson::object()), 0);
  EXPECT_GT(cached("one", OrderedJson::object()), 0);
  EXPECT_EQ(cached("two", OrderedJson::object()), 0);
  EXPECT_EQ(cached("one", {{"cache_salt", "a"}}), 0);
  EXPECT_EQ(cached("one", {{"cache_prompt", false}}), 0);
  EXPECT_GT(cached("one", {{"cache_salt", "a"}}), 0);
}

TEST_F(Completions, EachHasOneLineInTheLog) {
  HttpRequest request =
      post(kText, body({{"prompt", "a secret prompt"}}), {{"X-Request-Id", "req-1"}});
  request.peer = "127.0.0.1";
  ask(request);
  ask(post(kText, body({{"n", 99}}), {{"X-Request-Id", "req-2"}}));
  EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  const auto lines = log_with("req-1");
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"status 200", "finish length", "generated 24", "ttft_ms", "tpot_ms",
                           "drafted", "accepted", "peer 127.0.0.1", "cached"}) {
    EXPECT_THAT(lines[0].text, HasSubstr(part));
  }
  ASSERT_EQ(log_with("req-2").size(), 1u);
  EXPECT_THAT(log_with("req-2")[0].text, HasSubstr("status 400"));
  for (const LogLine& line : log()) {
    EXPECT_THAT(line.text, Not(HasSubstr("secret")));
    EXPECT_FALSE(line.is_failure) << line.text;
  }
}

TEST_F(Completions, MetricsCountThem) {
  answer(kText, body({{"max_tokens", 5}, {"ignore_eos", true}, {"n", 2}}));
  ask(post(kText, body({{"n", 99}})));
  EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  std::string text;
  EXPECT_TRUE(wait_until([&] {  // the engine's loop goes on for a moment
    text = ask(get("/metrics"))->body();
    return text.find("vllm:num_requests_running 0\n") != text.npos;
  }));
  for (const char* line :
       {"vllm:generation_tokens_total 10\n", "llamacpp:tokens_predicted_total 10\n",
        "vllm:request_success_total{finished_reason=\"length\"} 2\n",
        "vllm:time_to_first_token_seconds_count 2\n", "vllm:inter_token_latency_seconds_count 8\n",
        "vllm:num_requests_running 0\n", "quantspec_build_info{version=\"1.2.3\"} 1\n",
        "quantspec_http_requests_total{path=\"/v1/completions\",status=\"200\"} 1\n",
        "quantspec_http_requests_total{path=\"/v1/completions\",status=\"400\"} 1\n",
        "vllm:request_params_n_count 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  // Every sample belongs to the name above it, which has its help and type once.
  std::set<std::string> names;
  std::string name;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("# HELP ")) {
      name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(names.insert(name).second) << name;
    } else if (!line.starts_with("#")) {
      EXPECT_TRUE(line.starts_with(name)) << line << " after " << name;
    }
  }
}

}  // namespace
}  // namespace quantspec::api
