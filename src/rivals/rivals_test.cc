// What drafts see that gather tokens, against brute force: the visible positions are worked out
// from the definitions in gathered_kv.h, and attention over them is computed in double precision.
#include "rivals/rivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "base/expect_error.h"
#include "tests/access_support.h"

namespace quantspec::testing {
namespace {

class Rivals : public AccessTest {
 protected:
  Cache cache_of(std::vector<KvAccess> accesses) const {
    return {GetParam(), text_, {.accesses = std::move(accesses)}, with_rivals};
  }
  void expect_retrieval(int budget);
};

TEST_P(Rivals, StreamingReadsTheFirstTokensAndTheLatest) {
  // Windows longer and shorter than a page, and than the text.
  for (const int budget : {200, 60, 45, 4000}) {
    const KvAccess access{KvRead::kUpper, KvTokens::kStreaming, budget};
    Cache cache = cache_of({access});
    cache.prefill(kPrompt);
    for (const int length : {kPrompt, kPrompt + 40, kLength}) {
      cache.decode(length);
      const int ring = cache.cache().quantized();
      const int window = (std::max(0, budget - 16 - kPage) + 15) / 16 * 16;
      std::vector<int> visible = range(0, std::min(16, ring));
      for (int p = std::max(16, ring - window); p <= length; ++p) visible.push_back(p);
      EXPECT_GE(static_cast<int>(visible.size()), std::min(budget, length + 1));
      expect_sees(cache, access, everywhere(visible));
    }
  }
}

TEST_P(Rivals, SnapKeepsWhatTheLastQueriesOfThePromptAttendedTo) {
  const KvAccess access{KvRead::kUpper, KvTokens::kSnap, 32 + 50};
  Cache cache = cache_of({access});
  cache.prefill(kPrompt);
  const int end = cache.cache().quantized();
  Visible chosen(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> score(kPrompt - 32, 0.0), pooled(end, 0.0);
      for (int p = kPrompt - 32; p < kPrompt; ++p) {
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          const float* q = text_.query(layer, p) + (head * kHeads / kKvHeads + i) * kDim;
          for (const auto& [s, weight] : probabilities(
                   q, range(0, p + 1), [&](int s) { return text_.key(layer, head, s); })) {
            if (s < kPrompt - 32) score[s] += weight;
          }
        }
      }
      for (int s = 0; s < end; ++s) {
        for (int d = -2; d <= 2; ++d) {
          if (s + d >= 0 && s + d < kPrompt - 32) pooled[s] += score[s + d] / 5;
        }
      }
      const std::set<int> best = top(pooled, 50);
      chosen[layer].emplace_back(best.begin(), best.end());
    }
  }
  for (const int length : {kPrompt, kLength}) {
    cache.decode(length);
    Visible visible = chosen;
    for (auto& layer : visible) {
      for (auto& head : layer) {
        for (int p = end; p <= length; ++p) head.push_back(p);  // it grows
      }
    }
    expect_sees(cache, access, visible);
  }
}

TEST_P(Rivals, RetrievalKeepsSegmentsByTheirMeanKeyAndReplacesTheWorst) {
  for (const int budget : {96, 72, 75}) expect_retrieval(budget);
}

TEST_P(Rivals, RetrievalOfAShortPromptKeepsWhatCameLater) {
  const KvAccess access{KvRead::kUpper, KvTokens::kRetrieval, 200};
  Cache cache = cache_of({access});
  cache.prefill(150);
  cache.decode(kLength);
  // 96 positions were in pages then, the next 104 filled the room, and the rest went over the 96
  // first ones from the last down, then over all.
  std::vector<int> slots = range(0, 200);
  int next = 96;
  int p = 200;
  const int end = cache.cache().quantized();
  for (int page_end = 224; page_end <= end; page_end += kPage) {
    while (p < page_end) {
      const int run = std::min(page_end - p, next);
      std::iota(slots.begin() + next - run, slots.begin() + next, p);
      p += run;
      next = next == run ? 200 : next - run;
    }
  }
  for (p = end; p <= kLength; ++p) slots.push_back(p);
  Visible visible = everywhere(slots);
  expect_sees(cache, access, visible);
}

void Rivals::expect_retrieval(int budget) {
  const int kept = budget / 8 * 8;
  const KvAccess access{KvRead::kUpper, KvTokens::kRetrieval, budget};
  Cache cache = cache_of({access});
  cache.prefill(kPrompt);
  const int end = cache.cache().quantized();
  std::vector<std::vector<std::vector<int>>> slots(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> score(end / 8, 0.0);
      for (int segment = 0; segment < end / 8; ++segment) {
        Floats mean(kDim, 0.0f);
        for (int p = 8 * segment; p < 8 * segment + 8; ++p) {
          for (int c = 0; c < kDim; ++c) mean[c] += text_.key(layer, head, p)[c] / 8;
        }
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          score[segment] += dot(
              text_.query(layer, kPrompt - 1) + (head * kHeads / kKvHeads + i) * kDim, mean.data());
        }
      }
      score[0] = 1e9;
      std::vector<int> order = range(0, end / 8), positions;
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return score[a] > score[b]; });
      for (int i = 0; i < kept / 8; ++i) {
        for (int p = 8 * order[i]; p < 8 * order[i] + 8; ++p) positions.push_back(p);
      }
      slots[layer].push_back(positions);
    }
  }
  const auto expect_now = [&](int length) {
    Visible visible = slots;
    for (auto& layer : visible) {
      for (auto& head : layer) {
        for (int p = cache.cache().quantized(); p <= length; ++p) head.push_back(p);
      }
    }
    expect_sees(cache, access, visible);
  };
  expect_now(kPrompt);
  cache.decode(kLength);
  // Each page that left the ring took the place of the last slots, then of those before, and again.
  int last = kept;
  for (int p = end; p < cache.cache().quantized();) {
    const int run = std::min({last, (p / kPage + 1) * kPage - p, cache.cache().quantized() - p});
    for (auto& layer : slots) {
      for (auto& head : layer) std::iota(head.begin() + last - run, head.begin() + last, p);
    }
    p += run;
    last = last == run ? kept : last - run;
  }
  expect_now(kLength);
}

TEST_P(Rivals, AForkGoesOnByItself) {
  const KvAccess snap{KvRead::kUpper, KvTokens::kSnap, 100};
  const KvAccess mass{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache = cache_of({snap, mass});
  cache.prefill(kPrompt);
  cache.decode(kPrompt + 10);
  const Floats before = cache.draft(0, snap);
  KvCache fork = cache.cache().fork({snap});
  EXPECT_TRUE(fork.supports(0, snap));
  EXPECT_FALSE(fork.supports(0, mass));
  EXPECT_EQ(fork.length(), cache.cache().length());
  cache.decode(kLength);  // pages are shared and immutable, the rest is the fork's own
  std::swap(fork, cache.cache());
  EXPECT_EQ(cache.draft(0, snap), before);
  cache.decode(kLength);
  const Floats there = cache.draft(0, snap);
  std::swap(fork, cache.cache());
  EXPECT_EQ(cache.draft(0, snap), there);
}

TEST_P(Rivals, RefuseBudgetsThatAreTooSmall) {
  for (const KvTokens tokens : {KvTokens::kStreaming, KvTokens::kSnap, KvTokens::kRetrieval}) {
    const KvAccess access{KvRead::kUpper, tokens, 5};
    expect_error(ErrorKind::kInvalidRequest, {"draft budget 5: this plan needs at least"},
                 [&] { cache_of({access}); });
    const KvAccess share{KvRead::kUpper, tokens, KvBudget::one_in(4)};
    expect_error(ErrorKind::kInvalidRequest,
                 {"draft budget 1/4: drafts that gather tokens need their number", "2048", "works"},
                 [&] { cache_of({share}); });
  }
  const KvAccess streaming{KvRead::kUpper, KvTokens::kStreaming, 100};
  EXPECT_THROW(Cache(GetParam(), text_, {KvStore::kFull, {}, {streaming}}, with_rivals), Error);
}

// What they take at most is what they come to take, but for slots by which kSnap grows.
TEST_P(Rivals, TakeNoMoreThanIsCounted) {
  const auto backend = make_backend({GetParam(), 1});
  for (const KvTokens tokens : {KvTokens::kStreaming, KvTokens::kSnap, KvTokens::kRetrieval}) {
    const KvAccess access{KvRead::kUpper, tokens, 100};
    Cache cache = cache_of({access, access});
    cache.prefill(kPrompt);
    cache.decode(kLength);
    const std::size_t most = rivals_bytes({.accesses = {access}}, *backend, kShape, kLength + 1);
    EXPECT_GT(cache.cache().gathered_bytes(), 0u);
    EXPECT_LE(cache.cache().gathered_bytes(), most);
    EXPECT_TRUE(tokens == KvTokens::kSnap || cache.cache().gathered_bytes() == most);
  }
}

TEST(RivalsNone, LeaveOptionsAsTheyAre) {
  const auto backend = make_backend({"reference", 1});
  const KvOptions options{.accesses = {{KvRead::kUpper, KvTokens::kByMass, 100}}};
  EXPECT_EQ(with_rivals(options, *backend, kShape).gathered, nullptr);
  EXPECT_EQ(rivals_bytes(options, *backend, kShape, 1000), 0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, Rivals, ::testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quantspec::testing
