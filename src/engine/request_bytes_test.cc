#include "engine/request_bytes.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quantspec {
namespace {

Request full_request() {
  Request request;
  request.prompt = {3, 1, 4, 1, 5};
  request.predict = 9;
  request.sampling = {.temperature = 0.5f, .top_k = 3, .top_p = 0.9f, .seed = 77};
  request.biases = {.always = {{3, -1.5f}, {4, 2}}, .ends = {0, 2}, .min_tokens = 4};
  request.spec_sampling = SpecSampling::kRejection;
  request.draft_len = 5;
  request.forced = DraftChoice{1, 3};
  request.proposed = {7, 8};
  request.reference = {9};
  request.owner = 12;
  request.priority = -2;
  request.salt = std::string("a\0b", 3);
  request.to_folder = false;
  request.log_probs = true;
  request.top_log_probs = 6;
  request.prompt_log_probs = true;
  return request;
}

TEST(RequestBytes, HaveAllOfARequest) {
  const Request wanted = full_request(), got = request_of(bytes_of(wanted));
  EXPECT_EQ(got.prompt, wanted.prompt);
  EXPECT_EQ(got.predict, 9);
  EXPECT_EQ(got.sampling.temperature, 0.5f);
  EXPECT_EQ(got.sampling.top_k, 3);
  EXPECT_EQ(got.sampling.top_p, 0.9f);
  EXPECT_EQ(got.sampling.seed, 77u);
  EXPECT_EQ(got.biases.always, wanted.biases.always);
  EXPECT_EQ(got.biases.ends, wanted.biases.ends);
  EXPECT_EQ(got.biases.min_tokens, 4);
  EXPECT_EQ(got.spec_sampling, SpecSampling::kRejection);
  EXPECT_EQ(got.draft_len, 5);
  ASSERT_TRUE(got.forced);
  EXPECT_EQ(got.forced->plan, 1);
  EXPECT_EQ(got.forced->draft_len, 3);
  EXPECT_EQ(got.proposed, wanted.proposed);
  EXPECT_EQ(got.reference, wanted.reference);
  EXPECT_EQ(got.owner, 12u);
  EXPECT_EQ(got.priority, -2);
  EXPECT_EQ(got.salt, wanted.salt);
  EXPECT_FALSE(got.to_folder);
  EXPECT_TRUE(got.log_probs);
  EXPECT_EQ(got.top_log_probs, 6);
  EXPECT_TRUE(got.prompt_log_probs);
}

TEST(RequestBytes, ThatAreNotWholeAreRefused) {
  const std::vector<std::byte> bytes = bytes_of(full_request());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(request_of(std::span(bytes).first(size)), Error) << size;
  }
  std::vector<std::byte> more = bytes;
  more.push_back({});
  EXPECT_THROW(request_of(more), Error);
}

}  // namespace
}  // namespace quantspec
