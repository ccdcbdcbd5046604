// Requests of generation whose reader, server or memory ends them, or whose answer is early or
// late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/completion_test_support.h"
#include "engine/request_loop.h"

namespace quantspec::api {
namespace {

using testing::HasSubstr;

class CompletionEnds : public Completions {};

// --- readers -------------------------------------------------------------------------------------

TEST_F(CompletionEnds, AClientThatGoesTakesItsWorkAlong) {
  for (const bool stream : {false, true}) {
    const auto reply = send(post(
        kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", stream}, {"n", 2}})));
    if (stream) {
      ASSERT_TRUE(reply->wait_for_pieces(3));
    } else {
      ASSERT_TRUE(wait_until([&] { return api().live() == 1; }));
    }
    reply->go();
    EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
    const auto idle = [] {
      const auto s = test_engine().requests()->statistics();
      return s.scheduler.admitted == 0 && s.scheduler.waiting == 0;
    };
    EXPECT_TRUE(wait_until(idle));
  }
  EXPECT_EQ(log_with("status 499").size(), 2u);
}

// It pauses its own sequence, others go on, and it loses nothing.
TEST_F(CompletionEnds, ASlowReaderPausesItselfAlone) {
  const OrderedJson long_one = {{"max_tokens", 120}, {"ignore_eos", true}};
  const std::string expected = text_of(long_one);
  OrderedJson streamed = long_one;
  streamed["stream"] = true;
  const auto slow = std::make_shared<FakeReply>();
  slow->set_room(4);
  api().handle(post(kText, body(streamed)), slow);
  ASSERT_TRUE(slow->wait_for_pieces(4));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(text_of({}).empty(), false);
  EXPECT_FALSE(slow->finished());
  EXPECT_EQ(slow->pieces(), 4);
  EXPECT_TRUE(wait_until([&] { return api().live() == 1; }));
  slow->set_room(3);
  ASSERT_TRUE(slow->wait_for_pieces(7));
  slow->set_room(-1);
  ASSERT_TRUE(slow->wait());
  EXPECT_EQ(slow->texts().at(0), expected);
  EXPECT_EQ(slow->events().back(), "[DONE]");
}

TEST_F(CompletionEnds, AReaderThatNeverReadsIsGivenUp) {
  ApiOptions options = usual();
  options.stalled = 0.5;
  serve(options);
  const auto reply = std::make_shared<FakeReply>();
  reply->set_room(2);
  api().handle(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}})),
               reply);
  EXPECT_TRUE(reply->wait(20));
  EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  EXPECT_NE(reply->body().find("data: "), std::string::npos);
  EXPECT_EQ(reply->body().find("[DONE]"), std::string::npos);
}

TEST_F(CompletionEnds, AQuietStreamHasComments) {
  ApiOptions options = usual();
  options.ping = 0;
  serve(options);
  const auto blocker =
      send(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}})));
  EXPECT_TRUE(wait_until(
      [&] { return blocker->body().find(":\n\n") != std::string::npos || blocker->finished(); }));
  blocker->go();
}

// A Reply whose on_room() lasts until the engine has told the end of all choices: the thread that
// submitted them comes back late.
class LateReply final : public FakeReply {
 public:
  LateReply(Api& api, std::string line) : api_(api), line_(std::move(line)) {}
  void on_room(std::function<void()> callback) override {
    for (int i = 0; i < 12'000 && !has_ended(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FakeReply::on_room(std::move(callback));
  }

 private:
  bool has_ended() {
    const auto metrics = std::make_shared<FakeReply>();
    api_.handle(get("/metrics"), metrics);
    return metrics->body().find(line_) != std::string::npos;
  }

  Api& api_;
  const std::string line_;
};

TEST_F(CompletionEnds, AnswersThatEndBeforeTheyBeginAreTold) {
  for (const bool stream : {true, false}) {
    serve();
    const OrderedJson more = {{"max_tokens", 3}, {"ignore_eos", true}, {"n", 2}};
    OrderedJson asked = more;
    asked["stream"] = stream;
    const auto reply = std::make_shared<LateReply>(
        api(), "vllm:request_success_total{finished_reason=\"length\"} 2\n");
    api().handle(post(kText, body(asked)), reply);
    ASSERT_TRUE(reply->wait(90));
    EXPECT_EQ(reply->status(), 200);
    if (stream) {
      EXPECT_EQ(reply->events().back(), "[DONE]");
      EXPECT_EQ(reply->texts().size(), 2u);
      EXPECT_EQ(reply->texts().at(0), text_of(more));
    }
    EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  }
}

// What a Reply throws, which is for memory alone, keeps nothing from ending.
TEST_F(CompletionEnds, AReplyThatThrowsEndsAllTheSame) {
  class ThrowingReply final : public FakeReply {
   public:
    void respond(int status, Headers headers, std::string body) override {
      if (status == 200) throw std::bad_alloc();
      FakeReply::respond(status, std::move(headers), std::move(body));
    }
    bool send(std::string_view bytes) override {
      if (bytes.find("finish_reason\":\"length") != bytes.npos) throw std::bad_alloc();
      return FakeReply::send(bytes);
    }
  };
  for (const bool stream : {true, false}) {
    const auto reply = std::make_shared<ThrowingReply>();
    api().handle(post(kText, body({{"max_tokens", 20}, {"ignore_eos", true}, {"stream", stream}})),
                 reply);
    ASSERT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), stream ? 200 : 500);
    EXPECT_TRUE(wait_until([&] { return api().live() == 0; }));
  }
  for (const LogLine& line : log_with(" status 500 ")) EXPECT_TRUE(line.is_failure) << line.text;
  EXPECT_EQ(log_with(" status 500 ").size(), 2u);
  EXPECT_EQ(ask(post(kText, body()))->status(), 200);
  serve();  // ends the one before
}

// A request that waits to be read holds its body.
TEST_F(CompletionEnds, BodiesThatWaitAreBounded) {
  std::mutex gate;
  ApiOptions options = usual();
  options.front_threads = 1;
  options.front_bytes = 3000;
  options.apply_template = [&gate](const auto&, const auto&, bool, const auto&) {
    const std::lock_guard lock(gate);
    return std::string("Hi");
  };
  serve(options);
  const auto large = [&] { return send(post(kText, body({{"user", std::string(2000, 'a')}}))); };
  std::vector<std::shared_ptr<FakeReply>> replies;
  {
    const std::lock_guard lock(gate);
    replies.push_back(send(post(kChat, chat())));
    EXPECT_TRUE(wait_until([&] {
      return ask(get("/metrics"))->body().find("quantspec_front_queue 0\n") != std::string::npos;
    }));
    replies.push_back(large());
    const auto refused = large();
    EXPECT_EQ(refused->status(), 429);
    EXPECT_NE(refused->header("Retry-After"), "");
    replies.push_back(send(post(kText, body())));  // of which there is room
  }
  for (const auto& reply : replies) {
    ASSERT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200) << reply->body();
  }
}

// --- ends ----------------------------------------------------------------------------------------

TEST_F(CompletionEnds, DrainingEndsWhatHasNotBegun) {
  std::vector<std::shared_ptr<FakeReply>> replies;
  for (int i = 0; i < 8; ++i) {
    replies.push_back(send(post(kText, body({{"max_tokens", 60},
                                             {"ignore_eos", true},
                                             {"prompt", kPrompt + std::to_string(i)}}))));
  }
  ASSERT_TRUE(wait_until([&] { return api().live() == 8; }));
  api().drain();
  int done = 0, refused = 0;
  for (const auto& reply : replies) {
    ASSERT_TRUE(reply->wait());
    done += reply->status() == 200;
    refused += reply->status() == 503;
  }
  EXPECT_EQ(done + refused, 8);
  EXPECT_GE(refused, 1);  // the engine has room for 4
}

TEST_F(CompletionEnds, TheEndAnswersAll) {
  const auto whole = send(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}})));
  const auto stream =
      send(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}})));
  const auto stuck = std::make_shared<FakeReply>();
  stuck->set_room(1);
  api().handle(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}})),
               stuck);
  ASSERT_TRUE(stream->wait_for_pieces(2));
  ASSERT_TRUE(wait_until([&] { return api().live() == 3; }));
  serve();  // ends the one before
  EXPECT_TRUE(whole->finished());
  EXPECT_EQ(whole->status(), 503);
  EXPECT_TRUE(stuck->finished());
  ASSERT_TRUE(stream->finished());
  const OrderedJson last = OrderedJson::parse(stream->events().back());
  EXPECT_EQ(last["error"]["type"], "unavailable_error");
}

// It counts once, however often it is told.
TEST_F(CompletionEnds, WhatIsCancelledCountsOnce) {
  const auto stuck = std::make_shared<FakeReply>();
  stuck->set_room(1);
  api().handle(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}})),
               stuck);
  ASSERT_TRUE(stuck->wait_for_pieces(1));
  api().cancel_all();
  api().cancel_all();
  ASSERT_TRUE(stuck->wait());
  EXPECT_THAT(ask(get("/metrics"))->body(), HasSubstr("{cause=\"end\"} 1\n"));
}

// Between its look at whether the server drains and its place among those that drain() ends.
TEST_F(CompletionEnds, WhatIsReadWhileDrainingBeginsIsRefused) {
  ApiOptions options = usual();
  options.apply_template = [this](const auto&, const auto&, bool, const auto&) {
    api().drain();
    return std::string("Hi");
  };
  serve(options);
  EXPECT_THAT(refused(kChat, chat(), 503, nullptr), HasSubstr("the server ends"));
  EXPECT_EQ(api().live(), 0u);
}

TEST_F(CompletionEnds, ARequestMayTakeSoLong) {
  ApiOptions options = usual();
  options.request_timeout = 0;
  serve(options);
  const auto reply = ask(post(kText, body({{"max_tokens", 900}, {"ignore_eos", true}, {"n", 16}})));
  EXPECT_EQ(reply->status(), 503);
}

// For its log-probabilities, or so that others find it read.
TEST_F(CompletionEnds, NothingButThePromptIsRead) {
  for (const bool stream : {false, true}) {
    OrderedJson more = {{"prompt", "It was a dark night, and all"},
                        {"max_tokens", 0},
                        {"echo", true},
                        {"logprobs", 1},
                        {"return_tokens", true},
                        {"stream", stream}};
    if (stream) more["stream_options"] = {{"include_usage", true}};
    const auto got = ask(post(kText, body(more)));
    ASSERT_EQ(got->status(), 200) << got->body();
    OrderedJson usage, log_probs;
    std::string text, finish;
    for (const std::string& event : stream ? got->events() : std::vector{got->body()}) {
      if (event == "[DONE]") continue;
      const OrderedJson part = OrderedJson::parse(event);
      if (part.contains("usage") && !part["usage"].is_null()) usage = part["usage"];
      for (const OrderedJson& choice : part["choices"]) {
        text += choice["text"].get<std::string>();
        if (choice["logprobs"].is_object()) log_probs = choice["logprobs"];
        if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
        if (choice.contains("tokens")) {
          EXPECT_TRUE(choice["tokens"].empty());
        }
      }
    }
    EXPECT_EQ(text, "It was a dark night, and all");
    EXPECT_EQ(finish, "length");
    EXPECT_EQ(usage["completion_tokens"], 0);
    EXPECT_EQ(log_probs["tokens"].size(), usage["prompt_tokens"]);
  }
  const OrderedJson prompt = {{"prompt", std::vector<int>(200, 5)}, {"cache_salt", "reads"}};
  OrderedJson more = prompt;
  more["max_tokens"] = 0;
  EXPECT_EQ(answer(kText, body(more))["choices"][0]["text"], "");
  more["max_tokens"] = 2;
  EXPECT_EQ(answer(kText, body(more))["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
  more["max_tokens"] = 0;
  more["temperature"] = 0;
  more["receipt"] = true;
  refused(kText, more, 400, "receipt");
}

// --- predictions ---------------------------------------------------------------------------------

// As OpenAI's clients send it: a text that the answer is for the most part.
TEST_F(CompletionEnds, APredictionChangesNoTextAndIsAccountedFor) {
  const OrderedJson plain = answer(kText, body());
  EXPECT_FALSE(plain["usage"].contains("completion_tokens_details"));
  const auto text = plain["choices"][0]["text"].get<std::string>();
  const auto with = [](const OrderedJson& content) {
    return OrderedJson{{"prediction", {{"type", "content"}, {"content", content}}}};
  };
  const OrderedJson parts = OrderedJson::array({{{"type", "text"}, {"text", text}}});
  // How many tokens of the prediction were accepted.
  const auto accepted = [&](const OrderedJson& content) {
    const OrderedJson reply = answer(kText, body(with(content)));
    EXPECT_EQ(reply["choices"][0]["text"], text);
    const OrderedJson& details = reply["usage"]["completion_tokens_details"];
    const OrderedJson& drafts = reply["metrics"]["speculative_decoding"];
    EXPECT_LE(details["accepted_prediction_tokens"], drafts["looked_up_accepted"]);
    EXPECT_LE(details["accepted_prediction_tokens"], reply["usage"]["completion_tokens"]);
    EXPECT_EQ(details["rejected_prediction_tokens"].get<int>(),
              drafts["looked_up"].get<int>() - drafts["looked_up_accepted"].get<int>());
    return details["accepted_prediction_tokens"].get<int>();
  };
  accepted("something else");
  // NOTE: a short answer may end before looking up is found to pay, where others use the processor.
  for (const OrderedJson& content : {OrderedJson(text), parts}) {
    bool some = false;
    for (int answers = 0; answers < 50 && !some; ++answers) some = accepted(content) > 0;
    EXPECT_TRUE(some) << content;
  }
  EXPECT_EQ(text_of({{"prediction", nullptr}}), text);
  EXPECT_EQ(answer(kChat, chat(with("Who?")))["choices"][0]["message"]["content"],
            answer(kChat, chat())["choices"][0]["message"]["content"]);
}

TEST_F(CompletionEnds, PredictionsThatAreNoneAreRefused) {
  refused(kText, body({{"prediction", {{"content", "a"}}}}), 400, "prediction.type");
  refused(kText, body({{"prediction", {{"type", "edit"}, {"content", "a"}}}}), 400,
          "prediction.type");
  for (const OrderedJson& content :
       {OrderedJson(), OrderedJson(1), OrderedJson::array({{{"type", "image_url"}}})}) {
    const auto reply =
        ask(post(kText, body({{"prediction", {{"type", "content"}, {"content", content}}}})));
    EXPECT_EQ(reply->status(), 400) << reply->body();
    EXPECT_THAT(reply->body(), HasSubstr("prediction.content"));
  }
  refused(kText, body({{"prediction", "a"}}), 400, "prediction");
  OrderedJson seeded = body({{"prediction", {{"type", "content"}, {"content", "a"}}}});
  seeded.update({{"seed", 1}, {"temperature", 1}, {"spec_sampling", "rejection"}});
  EXPECT_THAT(refused(kText, seeded, 400, "prediction"), HasSubstr("coupled"));
  const std::string long_text(40 * test_engine().ctx_size(), 'a');
  EXPECT_THAT(refused(kText, body({{"prediction", {{"type", "content"}, {"content", long_text}}}}),
                      400, "prediction"),
              HasSubstr("longer than the context"));
}

}  // namespace
}  // namespace quantspec::api
