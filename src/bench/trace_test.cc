#include "bench/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/expect_error.h"
#include "base/test_folder.h"
#include "bench/test_support.h"

namespace quantspec::bench {
namespace {

using testing::dataset;
using testing::engine;

const std::filesystem::path kSmall =
    std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "tests/testdata/traces/small.jsonl";

TEST(Trace, IsReadInTheOrderOfArrival) {
  const Trace trace = read_trace(kSmall);
  ASSERT_EQ(trace.requests.size(), 5u);
  std::vector<double> arrivals;
  for (const TraceRequest& request : trace.requests) arrivals.push_back(request.arrival);
  EXPECT_EQ(arrivals, (std::vector<double>{1000, 1000, 1000.0205, 1000.04, 1000.12}));
  EXPECT_EQ(trace.requests[1].prefix, "system");
  EXPECT_EQ(trace.requests[1].shared_tokens, 160);
  EXPECT_EQ(trace.requests[2].owner, "b");
  EXPECT_EQ(trace.longest_prompt(), 230);
  EXPECT_EQ(trace.context(), 246);
}

TEST(Trace, WhatIsNoneIsRefusedInOneLine) {
  const TestFolder folder;
  const auto refused = [&](const std::string& text, std::vector<std::string> words) {
    words.push_back("t.jsonl");
    expect_error(ErrorKind::kCorruptFile, words,
                 [&] { read_trace(folder.write("t.jsonl", text)); });
  };
  const std::string good = R"({"arrival_ms": 1, "prompt_tokens": 2, "output_tokens": 3})";
  const auto with = [&](const std::string& key, const std::string& value) {
    std::string text = R"({"arrival_ms": 1, "prompt_tokens": 2, "output_tokens": 3})";
    const std::size_t at = text.find("\"" + key + "\": ");
    if (at == text.npos) return text.insert(1, "\"" + key + "\": " + value + ", ");
    return text.replace(at + key.size() + 4, 1, value);
  };
  EXPECT_EQ(read_trace(folder.write("t.jsonl", "\n" + good + "\r\n\n")).requests.size(), 1u);
  refused("", {"has no request"});
  refused(" \n\n", {"has no request"});
  refused(good + "\nx", {"line 2", "not valid JSON"});
  refused("[1]", {"line 1", "must be a JSON object"});
  refused(with("tokens", "1"), {"line 1", "no key", "tokens"});
  refused(with("owner", "1, \"owner\": 2"), {"twice"});
  for (const char* value : {"-1", "1e10", "\"1\"", "null", "true", "[]"}) {
    refused(with("arrival_ms", value), {"line 1", "'arrival_ms' must be a number from 0 to"});
  }
  for (const char* value :
       {"0", "-1", "1.5", "1e3", "16777217", "18446744073709551617", "\"1\"", "{}"}) {
    refused(with("prompt_tokens", value), {"'prompt_tokens' must be a whole number from 1 to"});
    refused(with("output_tokens", value), {"'output_tokens' must be a whole number from 1 to"});
  }
  refused(R"({"arrival_ms": 1, "prompt_tokens": 2})", {"'output_tokens' is not there"});
  refused(with("owner", "\"\""), {"'owner' must be a text of 1 to 256 bytes"});
  refused(with("owner", "\"" + std::string(257, 'x') + "\""), {"'owner' must be a text"});
  refused(with("shared_prefix", "3"), {"shared_prefix: must be a JSON object"});
  refused(with("shared_prefix", R"({"id": "a", "tokens": 3})"), {"'tokens'", "from 1 to 2"});
  refused(with("shared_prefix", R"({"tokens": 1})"), {"'id' is not there"});
  refused(with("shared_prefix", R"({"id": "a", "tokens": 1, "x": 1})"), {"shared_prefix: no key"});
  refused(std::string(300, '['), {"line 1", "t.jsonl"});
  std::string long_ones;
  for (int i = 0; i < 17; ++i) {
    long_ones += R"({"arrival_ms": 1, "prompt_tokens": 16777216, "output_tokens": 3})"
                 "\n";
  }
  refused(long_ones, {"more than 268435456 tokens in all"});
  std::string many;
  for (int i = 0; i <= 100'000; ++i) many += good + "\n";
  refused(many, {"more than 100000 requests"});
  expect_error(ErrorKind::kInvalidRequest, {"/nonexistent"}, [] { read_trace("/nonexistent"); });
  expect_error(ErrorKind::kInvalidRequest, {folder.path().string()},
               [&] { read_trace(folder.path()); });
}

TEST(Trace, PromptsHaveTheirLengthsAndShareWhatTheyShare) {
  const Trace trace = read_trace(kSmall);
  const auto prompts = cut_prompts(trace, dataset(), engine().tokenizer());
  ASSERT_EQ(prompts.size(), trace.requests.size());
  const auto bos = engine().tokenizer().encode("", true);
  std::vector<std::vector<TokenId>> beginnings;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(std::ssize(prompts[i]), trace.requests[i].prompt_tokens);
    EXPECT_TRUE(std::equal(bos.begin(), bos.end(), prompts[i].begin()));
    if (prompts[i].size() >= 64) {
      beginnings.emplace_back(prompts[i].begin(), prompts[i].begin() + 64);
    }
  }
  EXPECT_EQ(std::set(beginnings.begin(), beginnings.end()).size(), beginnings.size() - 1);
  const auto [one, other] = std::ranges::mismatch(prompts[1], prompts[4]);
  EXPECT_EQ(one - prompts[1].begin(), 160);
  EXPECT_EQ(cut_prompts(trace, dataset(), engine().tokenizer()), prompts);
}

TEST(Trace, ATextIsReadAgainFromOtherPlacesOn) {
  Trace trace{"t", {}};
  for (int i = 0; i < 40; ++i) trace.requests.push_back({0, 1000, 1});
  const auto prompts = cut_prompts(trace, dataset(), engine().tokenizer());  // of 8,600 tokens
  EXPECT_EQ(std::set(prompts.begin(), prompts.end()).size(), 40u);
}

TEST(Trace, TextsThatDoNotFitAreRefused) {
  const Trace longer{"t", {{0, 100'000, 1}}};
  expect_error(ErrorKind::kInvalidRequest, {"the longest"},
               [&] { cut_prompts(longer, dataset(), engine().tokenizer()); });
  const Dataset recall = Dataset::load(std::string("recall:") + QUANTSPEC_SOURCE_DIR + "/prompts");
  expect_error(ErrorKind::kInvalidRequest, {"recall:", "pieces of a text"},
               [&] { cut_prompts(read_trace(kSmall), recall, engine().tokenizer()); });
}

}  // namespace
}  // namespace quantspec::bench
