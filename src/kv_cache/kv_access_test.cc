// What a pass sees of the cache, for every access, against brute force: the visible positions are
// worked out from the definitions in kv_access.h, and attention over them is computed in double
// precision. Those that gather tokens: rivals/rivals_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "kv_cache/kv_cache.h"
#include "tests/access_support.h"

namespace quantspec::testing {
namespace {

class Access : public AccessTest {};

TEST_P(Access, AllPagesAndOnlyTheRing) {
  Cache cache(GetParam(), text_, {});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  expect_sees(cache, {KvRead::kUpper}, everywhere(range(0, kLength + 1)));
  expect_sees(cache, {KvRead::kBoth}, everywhere(range(0, kLength + 1)));
  expect_sees(cache, {KvRead::kUpper, KvTokens::kNone},
              everywhere(range(cache.cache().quantized(), kLength + 1)));
}

TEST_P(Access, FullLayersReadEverythingInFullPrecision) {
  Cache cache(GetParam(), text_, {.full_layers = {1}});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  const Floats actual = cache.draft(1, {KvRead::kFull});
  const auto all = std::vector(kKvHeads, range(0, kLength + 1));
  EXPECT_LT(difference(actual, brute_force(text_, 1, kLength, 0, KvRead::kBoth, all)),
            GetParam() == "reference" ? 1e-5 : 2e-3);
  // Its pages are there for drafts.
  const Floats upper =
      brute_force(text_, 1, kLength, cache.cache().quantized(), KvRead::kUpper, all);
  EXPECT_LT(difference(cache.draft(1, {KvRead::kUpper}), upper), tolerance());
  EXPECT_FALSE(cache.cache().supports(0, {KvRead::kFull}));
}

TEST_P(Access, ByMassReadsThePagesThatTheLastTargetPassAttendedTo) {
  const KvAccess access{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  expect_sees(cache, access, everywhere(range(0, kPrompt + 1)));  // no pass has been seen: all
  cache.decode(kLength - 7);
  // The last pass: its rows are the last up to 5 of the round that ended there.
  const int begin = cache.cache().length();
  cache.decode(begin + 3);
  const int pages = cache.cache().quantized() / kPage;
  Visible visible(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      const Seen seen = as_seen(text_, layer, head, begin + 3, pages * kPage, KvRead::kBoth);
      std::vector<double> mass(pages, 0.0);
      for (int p = begin; p < begin + 3; ++p) {
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          const float* q = text_.query(layer, p) + (head * kHeads / kKvHeads + i) * kDim;
          for (const auto& [s, weight] :
               probabilities(q, range(0, p + 1), [&](int s) { return seen.key(s); })) {
            if (s < pages * kPage) mass[s / kPage] += weight;
          }
        }
      }
      mass[0] = 1e9;
      visible[layer].push_back(
          pages_to_positions(top(mass, 4), pages * kPage, cache.cache().length()));
    }
  }
  EXPECT_NE(visible[0][0], visible[0][1]);  // heads choose for themselves
  expect_sees(cache, access, visible);
}

TEST_P(Access, MassesAreRecordedWhileTheyAreWanted) {
  const KvAccess access{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  const auto is_recorded = [&] {
    return cache.cache().view(0, KvAccess::target()).page_mass.data != nullptr;
  };
  EXPECT_TRUE(is_recorded());
  const std::uint64_t variant = cache.cache().list_variant();
  cache.cache().record_mass(false);
  EXPECT_FALSE(is_recorded());
  EXPECT_NE(cache.cache().list_variant(), variant);  // its views changed
  cache.decode(kPrompt + 5);
  expect_sees(cache, access, everywhere(range(0, kPrompt + 6)));  // nothing to choose by
  cache.cache().record_mass(true);
  EXPECT_EQ(cache.cache().list_variant(), variant);
  cache.cache().record_mass(false);
  cache.cache().clear();
  EXPECT_TRUE(is_recorded());
}

TEST_P(Access, ByBoundReadsThePagesWhoseKeysCouldMatchBest) {
  const KvAccess access{KvRead::kUpper, KvTokens::kByBound, 3 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {access}});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  const int pages = cache.cache().quantized() / kPage;
  Visible visible(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<double> bound(pages, -1e30);
      for (int page = 0; page < pages; ++page) {
        for (int i = 0; i < kHeads / kKvHeads; ++i) {
          const float* q = text_.query(layer, kLength) + (head * kHeads / kKvHeads + i) * kDim;
          double sum = 0;
          for (int c = 0; c < kDim; ++c) {
            float least = 1e30f, most = -1e30f;
            for (int p = page * kPage; p < (page + 1) * kPage; ++p) {
              least = std::min(least, text_.key(layer, head, p)[c]);
              most = std::max(most, text_.key(layer, head, p)[c]);
            }
            sum += std::max(q[c] * least, q[c] * most);
          }
          bound[page] = std::max(bound[page], sum);
        }
      }
      bound[0] = 1e9;
      visible[layer].push_back(pages_to_positions(top(bound, 3), pages * kPage, kLength));
    }
  }
  expect_sees(cache, access, visible);
}

// A share is of the pages that are there: a sequence that grows gets more, one value serves texts
// of any length, and whoever keeps what views show is told of every change.
TEST_P(Access, AShareGrowsWithTheSequence) {
  for (const KvTokens tokens : {KvTokens::kByMass, KvTokens::kByBound}) {
    const KvAccess access{KvRead::kUpper, tokens, KvBudget::one_in(4)};
    for (const int prompt : {1, 70, kPrompt}) {
      Cache cache(GetParam(), text_, {.accesses = {access}});
      cache.prefill(prompt);
      cache.decode(prompt + 1);
      std::map<std::uint64_t, std::size_t> listed;  // by list_variant()
      for (int length = prompt + 1; length <= kLength; length += 5) {
        cache.decode(length);
        const std::size_t pages = cache.cache().quantized() / kPage;
        const KvView view = cache.cache().view(0, access);
        const std::size_t expected = pages < 2 ? 0 : std::max<std::size_t>(1, pages / 4);
        EXPECT_EQ(view.page_lists.size(), kKvHeads * expected) << "at " << length;
        EXPECT_EQ(view.pages.size(), pages);
        const auto [known, is_new] =
            listed.emplace(cache.cache().list_variant(), view.page_lists.size());
        EXPECT_EQ(known->second, view.page_lists.size()) << "at " << length;
      }
      EXPECT_EQ(listed.size(), prompt < kPrompt ? 4u : 1u);  // 0 to 3 pages, or 3 of them
    }
  }
}

TEST_P(Access, ByBoundReadsAShareOfThePagesThatCouldMatchBest) {
  const KvAccess share{KvRead::kUpper, KvTokens::kByBound, KvBudget::one_in(3)};
  const KvAccess tokens{KvRead::kUpper, KvTokens::kByBound, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {share, tokens}});
  cache.prefill(kPrompt);
  cache.decode(kLength);
  ASSERT_EQ(cache.cache().quantized() / kPage, 14);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(cache.draft(layer, share), cache.draft(layer, tokens));
  }
}

TEST_P(Access, AForkGoesOnByItself) {
  const KvAccess bounds{KvRead::kUpper, KvTokens::kByBound, 3 * kPage};
  const KvAccess mass{KvRead::kUpper, KvTokens::kByMass, 4 * kPage};
  Cache cache(GetParam(), text_, {.accesses = {bounds, mass}});
  cache.prefill(kPrompt);
  cache.decode(kPrompt + 10);
  const Floats before = cache.draft(0, mass);
  KvCache fork = cache.cache().fork({mass});
  EXPECT_TRUE(fork.supports(0, mass));
  EXPECT_FALSE(fork.supports(0, bounds));
  EXPECT_EQ(fork.length(), cache.cache().length());
  cache.decode(kLength);  // pages are shared and immutable, the rest is the fork's own
  std::swap(fork, cache.cache());
  EXPECT_EQ(cache.draft(0, mass), before);
  cache.decode(kLength);
  const Floats there = cache.draft(0, mass);
  std::swap(fork, cache.cache());
  EXPECT_EQ(cache.draft(0, mass), there);
}

TEST_P(Access, RefusesWhatItCannotGive) {
  EXPECT_THROW(Cache(GetParam(), text_, {.full_layers = {kLayers}}), Error);
  const KvAccess mass{KvRead::kUpper, KvTokens::kByMass, 100};
  EXPECT_THROW(Cache(GetParam(), text_, {KvStore::kFull, {}, {mass}}), Error);
  // Nothing was brought along that gathers (rivals/).
  const KvAccess streaming{KvRead::kUpper, KvTokens::kStreaming, 100};
  EXPECT_THROW(Cache(GetParam(), text_, {.accesses = {streaming}}), Error);
}

TEST(KvAccess, CountsWhatIsReadBesideTheRing) {
  constexpr int kPaged = 10 * kPage;
  const auto read = [](KvTokens tokens, KvBudget budget) {
    return KvAccess{KvRead::kUpper, tokens, budget}.tokens_read(kPaged, kPage);
  };
  EXPECT_EQ(read(KvTokens::kAll, {}), kPaged);
  EXPECT_EQ(read(KvTokens::kNone, {}), 0);
  EXPECT_EQ(read(KvTokens::kByMass, 100), 3 * kPage);
  EXPECT_EQ(read(KvTokens::kByBound, KvBudget::one_in(4)), 2 * kPage);
  EXPECT_EQ(read(KvTokens::kStreaming, 100), 16 + 64);  // a page of the budget is in the ring
  EXPECT_EQ(read(KvTokens::kStreaming, 20), 16);
  EXPECT_EQ(read(KvTokens::kSnap, 100), 100 - 32);
  EXPECT_EQ(read(KvTokens::kSnap, 20), 0);
  EXPECT_EQ(read(KvTokens::kRetrieval, 100), 96);
  EXPECT_EQ(read(KvTokens::kRetrieval, 9999), kPaged);
}

INSTANTIATE_TEST_SUITE_P(Backends, Access, ::testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quantspec::testing
