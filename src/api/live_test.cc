// What is told of an answer as it comes, and shows how the engine works: times, progress, drafts,
// the last steps, the page.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/completion_test_support.h"
#include "api/live_page.h"
#include "base/clock.h"

namespace quantspec::api {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(Completions, SayWhatWasDrafted) {
  const OrderedJson asked =
      body({{"return_drafts", true}, {"return_tokens", true}, {"draft_len", 3}});
  const OrderedJson whole = answer(kText, asked);
  const OrderedJson& drafts = whole["choices"][0]["drafts"];
  OrderedJson ids = OrderedJson::array();
  int accepted = 0, rejected = 0, looked_up = 0;
  for (const OrderedJson& one : drafts) {
    ids.push_back(one["id"]);
    accepted += one["drafted"].get<bool>();
    looked_up += one["looked_up"].get<bool>();
    EXPECT_TRUE(one["drafted"] || !one["looked_up"]);
    rejected += static_cast<int>(one["rejected"].size());
    for (const OrderedJson& other : one["rejected"]) EXPECT_TRUE(other["token"].is_string());
    if (!one["rejected"].empty()) {
      EXPECT_NE(one["rejected"][0]["id"], one["id"]);
    }
  }
  EXPECT_EQ(ids, whole["choices"][0]["tokens"]);
  const OrderedJson& told = whole["metrics"]["speculative_decoding"];
  EXPECT_EQ(accepted, told["accepted"]);
  EXPECT_EQ(looked_up, told["looked_up_accepted"]);
  EXPECT_LE(told["looked_up"], told["drafted"]);
  EXPECT_EQ(accepted + rejected, told["drafted"]);
  EXPECT_GT(told["drafted"], 0);

  OrderedJson streamed = OrderedJson::array();
  OrderedJson by_stream = asked;
  by_stream["stream"] = true;
  for (const std::string& event : ask(post(kText, by_stream))->events()) {
    if (event == "[DONE]") continue;
    const OrderedJson choice = OrderedJson::parse(event)["choices"][0];
    if (!choice.contains("drafts")) continue;
    for (const OrderedJson& one : choice["drafts"]) streamed.push_back(one["id"]);
  }
  EXPECT_EQ(streamed, ids);
  EXPECT_FALSE(answer(kText, body())["choices"][0].contains("drafts"));
}

TEST_F(Completions, LastStepsSayWhoDrafted) {
  OrderedJson asked = body({{"max_tokens", 40}});
  asked["draft_len"] = 3;
  const auto steps = [&](const std::string& query = {}) {
    HttpRequest request = get("/debug/steps");
    request.query = query;
    return ask(std::move(request))->json()["steps"];
  };
  const OrderedJson before = steps();
  const std::uint64_t last = before.empty() ? 0 : before.back()["step"].get<std::uint64_t>();
  const OrderedJson reply = answer(kText, asked);
  const OrderedJson& told = reply["metrics"]["speculative_decoding"];
  const auto turns_of = [](const OrderedJson& steps) {
    std::size_t turns = 0;
    for (const OrderedJson& step : steps) turns += step["turns"].size();
    return turns;
  };
  // A step is told when it is over, which may be after the answer that it ended.
  OrderedJson since = steps("after=" + std::to_string(last));
  const Stopwatch clock;
  while (turns_of(since) < told["rounds"].get<std::size_t>() && clock.seconds() < 10) {
    since = steps("after=" + std::to_string(last));
  }
  int drafted = 0, accepted = 0, turns = 0;
  for (const OrderedJson& step : since) {
    EXPECT_GT(step["step"], last);
    for (const OrderedJson& turn : step["turns"]) {
      ++turns;
      drafted += turn["drafted"].get<int>();
      accepted += turn["accepted"].get<int>();
      EXPECT_EQ(turn["plan"].is_null(), turn["drafted"] == 0);
    }
  }
  EXPECT_EQ(since.front()["turns"].size(), 0u);
  EXPECT_GT(since.front()["prompt"]["tokens"], 0);
  EXPECT_EQ(turns, told["rounds"]);
  EXPECT_EQ(drafted, told["drafted"]);
  EXPECT_EQ(accepted, told["accepted"]);
  for (const char* query :
       {"after=", "after=-1", "after=1x", "before=1", "after=99999999999999999999"}) {
    HttpRequest request = get("/debug/steps");
    request.query = query;
    EXPECT_EQ(ask(std::move(request))->status(), 400) << query;
  }
}

std::vector<OrderedJson> chunks_of(const std::shared_ptr<FakeReply>& reply) {
  std::vector<OrderedJson> chunks;
  for (const std::string& event : reply->events()) {
    if (event != "[DONE]") chunks.push_back(OrderedJson::parse(event));
  }
  return chunks;
}

TEST_F(Completions, TimesComeWithEachToken) {
  OrderedJson asked = body({{"timings_per_token", true}, {"stream", true}});
  asked["stream_options"] = {{"include_usage", true}};
  const auto chunks = chunks_of(ask(post(kText, asked)));
  int told = 0;
  for (const OrderedJson& chunk : chunks) {
    if (chunk["choices"].empty() || !chunk["choices"][0]["finish_reason"].is_null()) continue;
    const OrderedJson& times = chunk["timings"];
    EXPECT_GE(times["predicted_n"], ++told);
    EXPECT_GT(times["prompt_ms"], 0);
    EXPECT_GT(times["prompt_n"], 0);
    EXPECT_LE(times["draft_n_accepted"], times["draft_n"]);
  }
  EXPECT_GT(told, 5);
  EXPECT_EQ(chunks.back()["timings"]["predicted_n"], 24);
  for (const OrderedJson& chunk : chunks_of(ask(post(kText, body({{"stream", true}}))))) {
    EXPECT_EQ(chunk.contains("timings"), !chunk["choices"][0]["finish_reason"].is_null());
  }
}

TEST_F(Completions, ProgressIsToldWhileAPromptIsRead) {
  std::string prompt = "Progress was made";
  for (int i = 0; i < 200; ++i) prompt += fmt::format(" by the {} of {} men", i, i * i % 37);
  OrderedJson asked = body({{"prompt", prompt}, {"max_tokens", 2}, {"stream", true}});
  asked["return_progress"] = true;
  asked["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  int cached = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<OrderedJson> told;
    const auto chunks = chunks_of(ask(post(kText, asked)));
    for (const OrderedJson& chunk : chunks) {
      if (chunk.contains("prompt_progress")) told.push_back(chunk["prompt_progress"]);
    }
    const int total = chunks.back()["usage"]["prompt_tokens"];
    ASSERT_GE(told.size(), 2u);
    EXPECT_EQ(told.front()["processed"], told.front()["cache"]);
    for (std::size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i]["total"], total);
      if (i > 0) {
        EXPECT_GT(told[i]["processed"], told[i - 1]["processed"]);
      }
    }
    EXPECT_EQ(told.back()["processed"], total);
    cached = told.back()["cache"];
    EXPECT_EQ(cached > 0, round > 0);
    // Known before the end.
    EXPECT_EQ(chunks[chunks.size() - 3]["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
  }
}

TEST_F(Completions, AConversationsTokensAreCounted) {
  const OrderedJson counted = answer("/v1/chat/completions/input_tokens", chat());
  EXPECT_EQ(counted["input_tokens"], answer(kChat, chat())["usage"]["prompt_tokens"]);
}

// A browser runs what is in the page and nothing else, and asks nobody else for anything.
TEST_F(Completions, ThePageIsOneFile) {
  const auto reply = ask(get("/"));
  EXPECT_EQ(reply->status(), 200);
  EXPECT_EQ(reply->header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(reply->body(), kLivePage);
  EXPECT_THAT(reply->header("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(reply->header("Content-Security-Policy"), Not(HasSubstr("unsafe")));
  const std::string page(kLivePage);
  EXPECT_THAT(page, HasSubstr("</html>"));
  for (const char* outside : {"src=", "@import", "url(", "innerHTML", "insertAdjacent", "eval(",
                              "document.write", " style=", " onclick"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside))) << outside;
  }
}

}  // namespace
}  // namespace quantspec::api
