#include "kv_cache/kv_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/expect_error.h"

namespace quantspec {
namespace {

constexpr int kPage = 32, kChunk = 2 * kPage, kCapacity = 10 * kPage + 7;

KvLengths lengths() { return {kCapacity, kPage, kChunk, true}; }

// As a cache does before a pass.
void reserve(KvLengths& at, int rows) {
  if (at.page_due()) at.page_made();
  at.reserve(rows);
}

void decode(KvLengths& at, int length) {
  while (at.length() < length) {
    reserve(at, std::min(at.max_rows(), length - at.length()));
    at.settle(at.reserved());
  }
}

TEST(KvLengths, APageIsMadeOfWhatAForwardNoLongerReadsInFull) {
  KvLengths at = lengths();
  for (int length = 0; length < kCapacity; ++length) {
    reserve(at, 1);
    EXPECT_EQ(at.quantized(), kPage * std::max(0, length / kPage - 1)) << length;
    EXPECT_LE(at.length() - at.quantized(), 2 * kPage);
    EXPECT_EQ(at.committed(), at.quantized() == 0 ? 0 : at.quantized() + kPage);
    EXPECT_EQ(at.max_rows(), std::min(kPage - length % kPage, kCapacity - length));
    at.settle(1);
  }
  EXPECT_EQ(at.max_rows(), 0);
}

TEST(KvLengths, WhatIsReservedIsSettledInParts) {
  KvLengths at = lengths();
  reserve(at, 5);
  at.settle(2);
  EXPECT_EQ(at.length(), 2);
  EXPECT_EQ(at.reserved(), 3);
  EXPECT_THROW(at.settle(4), Error);
  at.settle(0);
  reserve(at, 7);  // forgets the rest
  EXPECT_EQ(at.reserved(), 7);
}

TEST(KvLengths, AForwardDoesNotSpanAPageBorder) {
  KvLengths at = lengths();
  EXPECT_THROW(at.reserve(kPage + 1), Error);
  EXPECT_THROW(at.reserve(0), Error);
  decode(at, 2 * kPage);
  EXPECT_TRUE(at.page_due());
  EXPECT_THROW(at.reserve(1), Error);  // the page comes first
  at.page_made();
  EXPECT_FALSE(at.page_due());
  at.reserve(kPage);
}

TEST(KvLengths, OnlyWhatIsSpeculativeIsForgotten) {
  KvLengths at = lengths();
  at.begin_prompt(10);
  at.add_prompt(10);
  decode(at, 3 * kPage + 5);
  EXPECT_EQ(at.committed(), 3 * kPage);
  EXPECT_THROW(at.truncate(3 * kPage - 1), Error);
  EXPECT_THROW(at.truncate(3 * kPage + 6), Error);
  at.truncate(3 * kPage);
  EXPECT_EQ(at.length(), 3 * kPage);
  at.clear();
  EXPECT_EQ(at.length() + at.quantized() + at.prompt() + at.reserved(), 0);
}

TEST(KvLengths, APromptKeepsTheWholeChunksOfTheOnesBefore) {
  KvLengths at = lengths();
  at.begin_prompt(kChunk + 9);
  EXPECT_EQ(at.pages_with_chunk(kChunk), 2);  // all of a whole chunk, beyond B
  at.add_prompt(kChunk);
  EXPECT_EQ(at.quantized(), kPage);
  EXPECT_EQ(at.pages_with_chunk(9), 2 - 1);  // of another what decoding reads
  at.add_prompt(9);
  EXPECT_FALSE(at.at_chunk());
  EXPECT_THROW(at.add_prompt(1), Error);
  EXPECT_THROW(at.pages_with_chunk(1), Error);
  decode(at, kChunk + 20);
  at.begin_prompt(kChunk + 21);
  EXPECT_EQ(at.length(), kChunk);
  EXPECT_EQ(at.prompt(), kChunk);
  EXPECT_TRUE(at.at_chunk());
  EXPECT_THROW(at.begin_prompt(kChunk), Error);
}

// What is attached leaves tokens to read: for the ring, and for the last one's logits.
TEST(KvLengths, OfATextWholeChunksBelowItsRingMayBeAttached) {
  const KvLengths at = lengths();
  for (int text = 1; text <= kCapacity; ++text) {
    const int most = at.most_attached(text);
    EXPECT_EQ(most % kChunk, 0);
    EXPECT_LE(most, at.first_full(text));
    EXPECT_GT(most + kChunk, at.first_full(text));
    EXPECT_LT(most, text);
  }
}

TEST(KvLengths, WhatDoesNotFitIsRefused) {
  KvLengths at = lengths();
  expect_error(ErrorKind::kInvalidRequest, {"the context is full: 0 tokens in it, 328 more wanted"},
               [&] { at.begin_prompt(kCapacity + 1); });
  at.begin_prompt(kCapacity);
  EXPECT_THROW(KvLengths(0, kPage, kChunk, true), Error);
  EXPECT_THROW(KvLengths(1, kPage, kPage + 1, true), Error);
}

TEST(KvLengths, InFullPrecisionThereAreNoPagesAndNoBorders) {
  KvLengths at(kCapacity, kPage, kChunk, false);
  EXPECT_EQ(at.pages_with_chunk(kChunk), 0);
  at.add_prompt(kChunk);
  EXPECT_EQ(at.max_rows(), kCapacity - kChunk);
  at.reserve(kCapacity - kChunk);
  at.settle(100);
  EXPECT_EQ(at.quantized(), 0);
  EXPECT_FALSE(at.page_due());
  at.truncate(kChunk);
}

// Whatever is done, pages hold what is old enough and nothing else.
TEST(KvLengths, KeepTheirRulesWhateverIsDone) {
  std::mt19937 random(7);
  const auto uniform = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  KvLengths at = lengths();
  for (int i = 0; i < 20'000; ++i) {
    switch (uniform(0, 5)) {
      case 0:
        if (uniform(0, 9) == 0) at.clear();
        break;
      case 1:
        at.truncate(uniform(std::max(at.committed(), at.prompt()), at.length()));
        break;
      case 2: {
        if (at.length() == kCapacity) break;
        const int end = uniform(at.length() + 1, kCapacity);
        at.begin_prompt(end);
        while (at.length() < end) {
          const int tokens = std::min(kChunk, end - at.length());
          const int pages = at.pages_with_chunk(tokens);
          const int before = at.in_ring();
          if (tokens == kChunk && uniform(0, 2) == 0) {
            const int from = at.length() + uniform(0, kChunk);
            at.attach_prompt(tokens, from);
            ASSERT_EQ(at.in_ring(), std::max(from, at.quantized()));
          } else {
            at.add_prompt(tokens);
            ASSERT_EQ(at.in_ring(), std::max(before, at.quantized()));
          }
          ASSERT_GE(pages * kPage, at.quantized());
          ASSERT_LE(pages * kPage, at.length());
        }
        break;
      }
      case 3: {
        KvLengths other = lengths();
        other.restore(at);
        ASSERT_EQ(other.in_ring(), at.in_ring());
        at = other;
        break;
      }
      default:
        if (at.length() == kCapacity) break;
        reserve(at, uniform(1, at.max_rows()));
        ASSERT_EQ(at.quantized(), at.first_full(at.length()));
        at.settle(uniform(0, at.reserved()));
    }
    ASSERT_EQ(at.quantized() % kPage, 0);
    ASSERT_LE(at.quantized(), at.length());
    ASSERT_LE(at.length() - at.quantized(), 2 * kPage);
    ASSERT_LE(at.prompt(), at.length());
    ASSERT_LE(at.committed(), std::max(at.length(), at.prompt()));
  }
}

}  // namespace
}  // namespace quantspec
