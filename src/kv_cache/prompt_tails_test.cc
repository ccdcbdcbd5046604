// Which tails there are and which of them is found; that they have the bits of what was computed is
// for whole engines to show (tests/schedule_exactness_test.cc).
#include "kv_cache/prompt_tails.h"

#include <gtest/gtest.h>

#include <numeric>

#include "backend/backend.h"

namespace quantspec {
namespace {

using Tokens = std::vector<TokenId>;

constexpr KvShape kShape{2, 1, 32, 16};
constexpr int kChunk = 64;

class PromptTailsTest : public testing::Test {
 protected:
  // Tokens that nobody else has behind the first `common` of count.
  static Tokens text(int count, int common = 0, TokenId other = 0) {
    Tokens tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0);
    for (int i = common; i < count; ++i) tokens[i] += other;
    return tokens;
  }
  bool add(const Tokens& prompt, std::string_view salt = "", int in_ring = 0) {
    auto tail = tails_.begin(salt, prompt, in_ring);
    if (tail == nullptr) return false;
    tails_.add(std::move(tail));
    return true;
  }
  int found(const Tokens& tokens, std::string_view salt = "") {
    const auto [tail, end] = tails_.find(salt, tokens);
    return tail == nullptr ? -1 : end;
  }
  static std::size_t bytes_of(const Backend& backend, int rows) {
    return kShape.num_layers * backend.full_kv_bytes(kShape, rows);
  }

  std::unique_ptr<Backend> backend_ = make_backend({"cpu", 1});
  PromptTails tails_{*backend_, kShape, kChunk, 4 * bytes_of(*backend_, 2 * 16 + kChunk)};
};

TEST_F(PromptTailsTest, WhatTextsHaveInCommonIsFoundInMultiplesOf16) {
  EXPECT_EQ(found(text(50)), -1);
  EXPECT_TRUE(add(text(50)));
  EXPECT_EQ(found(text(300)), 48);
  EXPECT_EQ(found(text(47)), 32);
  EXPECT_EQ(found(text(300, 40, 1000)), 32);
  EXPECT_EQ(found(text(300, 15, 1000)), -1);
  EXPECT_EQ(found(text(300), "another's"), -1);
  const auto [tail, end] = tails_.find("", text(300));
  EXPECT_EQ(tail->first(), 0);
  EXPECT_EQ(tail->start(), 0);
  EXPECT_EQ(tail->end(), 48);
}

TEST_F(PromptTailsTest, ATailBeginsWhereTheRingDoes) {
  EXPECT_TRUE(add(text(2 * kChunk + 20)));
  const auto [tail, end] = tails_.find("", text(300));
  EXPECT_EQ(tail->start(), 2 * kChunk);
  EXPECT_EQ(tail->first(), first_full_position(2 * kChunk, kShape.page_size));
  EXPECT_EQ(end, 2 * kChunk + 16);
  // Of a text that leaves it before its chunk, or ends there, it has nothing that is not in pages.
  EXPECT_EQ(found(text(300, 2 * kChunk - 1, 1000)), -1);
  EXPECT_EQ(found(text(2 * kChunk)), 2 * kChunk);
}

TEST_F(PromptTailsTest, WholeChunksLeaveWhatTheRingHolds) {
  EXPECT_TRUE(add(text(kChunk)));
  const auto [tail, end] = tails_.find("", text(kChunk + 1));
  EXPECT_EQ(end, kChunk);
  EXPECT_EQ(tail->start(), kChunk);
  EXPECT_EQ(tail->end() - tail->first(), kChunk - first_full_position(kChunk, kShape.page_size));
}

TEST_F(PromptTailsTest, LongerOnesReplaceWhatTheyBeginWith) {
  EXPECT_TRUE(add(text(20)));
  EXPECT_TRUE(add(text(50)));
  EXPECT_EQ(tails_.size(), 1u);
  EXPECT_FALSE(add(text(50)));
  EXPECT_FALSE(add(text(33)));
  EXPECT_TRUE(add(text(50, 20, 1000)));
  EXPECT_EQ(tails_.size(), 2u);
  EXPECT_TRUE(add(text(kChunk + 20)));  // of another chunk
  EXPECT_TRUE(add(text(50), "another's"));
  EXPECT_EQ(tails_.size(), 4u);
  EXPECT_EQ(found(text(50)), 48);
  EXPECT_FALSE(add(text(15)));  // too few
}

// A long prompt that found its chunks as pages has nothing of the ring before its last chunk, of
// which a short one reads.
TEST_F(PromptTailsTest, ATailIsNotForTextsThatReadMoreOfTheRing) {
  const int ring = first_full_position(kChunk, kShape.page_size);
  ASSERT_LT(ring, kChunk);
  EXPECT_TRUE(add(text(kChunk + 50), "", kChunk));
  EXPECT_EQ(found(text(kChunk + 49)), kChunk + 48);
  EXPECT_EQ(found(text(kChunk + 9)), -1);
  EXPECT_FALSE(tails_.find("", text(kChunk + 49)).tail->has_all_of_ring());
  // One that has it takes the other's place, and not the other way round.
  EXPECT_TRUE(add(text(kChunk + 50), "", ring));
  EXPECT_EQ(tails_.size(), 1u);
  EXPECT_EQ(found(text(kChunk + 9)), kChunk);
  EXPECT_TRUE(tails_.find("", text(kChunk + 49)).tail->has_all_of_ring());
  EXPECT_FALSE(add(text(kChunk + 50), "", kChunk));
  EXPECT_TRUE(add(text(kChunk + 60, kChunk + 10, 1000), "", kChunk));
  EXPECT_EQ(tails_.size(), 2u);
}

TEST_F(PromptTailsTest, TheLeastRecentlyUsedGo) {
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(add(text(kChunk - 1, 0, 1000 * i)));
  EXPECT_EQ(found(text(kChunk - 1, 0, 1000)), 48);
  for (int i = 5; i <= 12; ++i) {
    const auto held = tails_.find("", text(kChunk - 1, 0, 2000));
    EXPECT_TRUE(add(text(kChunk + 63, 0, 1000 * i)));
    EXPECT_EQ(found(text(kChunk - 1, 0, 2000)), 48);  // it is used all the time
  }
  EXPECT_EQ(found(text(kChunk - 1, 0, 3000)), -1);
  EXPECT_EQ(found(text(kChunk - 1, 0, 1000)), -1);
}

TEST_F(PromptTailsTest, WhatIsHeldStays) {
  std::vector<PromptTails::Found> held;
  int count = 0;
  while (add(text(kChunk + 63, 0, 1000 * ++count))) {
    held.push_back(tails_.find("", text(kChunk + 63, 0, 1000 * count)));
    ASSERT_LT(count, 100);
  }
  EXPECT_GE(count, 4);
  EXPECT_EQ(found(text(kChunk + 63, 0, 1000)), kChunk + 48);
  held.clear();
  EXPECT_TRUE(add(text(kChunk + 63, 0, 1000 * count)));
}

TEST_F(PromptTailsTest, WithoutMemoryThereAreNone) {
  PromptTails none(*backend_, kShape, kChunk, 0);
  EXPECT_EQ(none.begin("", text(100), 0), nullptr);
  EXPECT_EQ(none.find("", text(100)).tail, nullptr);
}

TEST_F(PromptTailsTest, BytesComeBackToAnother) {
  auto tail = tails_.begin("", text(50), 0);
  std::vector<std::byte> bytes(tail->bytes()), back(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  tail->upload(bytes);
  tail->download(back);
  EXPECT_EQ(back, bytes);
}

}  // namespace
}  // namespace quantspec
