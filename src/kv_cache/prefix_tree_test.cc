// Each rule of the tree by itself; prefix_tree_model_test.cc tests them together.

#include "kv_cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/expect_error.h"
#include "kv_cache/prefix_tree_test_support.h"

namespace quantspec {
namespace {

using Next = PrefixTree::Next;
using Path = PrefixTree::Path;

struct PrefixTreeTest : testing::Test {
  std::unique_ptr<Backend> backend = make_backend({"reference", 1});
  PagePool pool{*backend, kShape};
  PrefixTree tree{pool, kChunk};

  void TearDown() override { tree.check_integrity(); }

  std::vector<PageRef> new_pages() {
    std::vector<PageRef> pages;
    while (pages.size() < kPages) pages.push_back(pool.allocate());
    return pages;
  }
  Next advance(Path& path, char letter) { return path.advance(prompt({&letter, 1})); }
  // Goes down `chunks`, making what is not there.
  Path read(std::string_view salt, std::string_view chunks) {
    Path path = tree.match(salt, {});
    for (const char letter : chunks) {
      if (advance(path, letter) == Next::kYours) path.seal(new_pages());
    }
    return path;
  }
  int matched(std::string_view salt, std::string_view chunks) {
    return tree.match(salt, prompt(chunks)).tokens() / kChunk;
  }
};

TEST_F(PrefixTreeTest, AnEmptyTreeMatchesNothing) {
  const Path path = tree.match("owner", prompt("abc"));
  EXPECT_EQ(path.tokens(), 0);
  EXPECT_TRUE(path.pages().empty());
  EXPECT_TRUE(path.last_pages().empty());
  EXPECT_FALSE(path.making());
  EXPECT_EQ(tree.statistics().paths, 1u);
}

TEST_F(PrefixTreeTest, MatchesTheLongestBeginningAndItsPagesInOrder) {
  const Path first = read("owner", "abc");
  const Path second = tree.match("owner", prompt("abd"));
  EXPECT_EQ(second.tokens(), 2 * kChunk);
  const auto all = identities(first.pages());
  ASSERT_EQ(all.size(), 3 * kPages);
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(identities(second.pages()), std::vector(all.begin(), all.end() - kPages));
  EXPECT_EQ(identities(first.last_pages()), std::vector(all.end() - kPages, all.end()));
}

TEST_F(PrefixTreeTest, AChunkThatIsNotWholeDoesNotMatch) {
  read("owner", "ab");
  std::vector<TokenId> tokens = prompt("ab");
  tokens.pop_back();  // as a prompt asks that must read its last token
  EXPECT_EQ(tree.match("owner", tokens).tokens(), kChunk);
}

TEST_F(PrefixTreeTest, TheSameChunkAfterAnotherBeginningIsAnotherChunk) {
  const Path first = read("owner", "ab"), second = read("owner", "bb");
  EXPECT_NE(identities(first.last_pages()), identities(second.last_pages()));
  EXPECT_EQ(tree.statistics().chunks, 4u);
}

TEST_F(PrefixTreeTest, OwnersDoNotSeeEachOthersChunks) {
  read("one", "abc");
  EXPECT_EQ(matched("one", "abc"), 3);
  EXPECT_EQ(matched("two", "abc"), 0);
  EXPECT_EQ(matched("", "abc"), 0);
  const Path two = read("two", "a");
  EXPECT_NE(identities(two.pages()), identities(tree.match("one", prompt("a")).pages()));
}

TEST_F(PrefixTreeTest, AChunkHasOneProducerAndIsReadyForAllOnceSealed) {
  Path producer = tree.match("owner", prompt("a")), other = tree.match("owner", prompt("a"));
  EXPECT_EQ(advance(producer, 'a'), Next::kYours);
  EXPECT_TRUE(producer.making());
  EXPECT_EQ(producer.tokens(), 0);
  EXPECT_EQ(advance(other, 'a'), Next::kInMaking);
  EXPECT_FALSE(other.making());
  EXPECT_EQ(matched("owner", "a"), 0);
  tree.check_integrity();

  producer.seal(new_pages());
  EXPECT_FALSE(producer.making());
  EXPECT_EQ(producer.tokens(), kChunk);
  EXPECT_EQ(advance(other, 'a'), Next::kReady);
  EXPECT_EQ(identities(other.pages()), identities(producer.pages()));
}

TEST_F(PrefixTreeTest, AProducerNeverWaitsForItself) {
  Path path = tree.match("owner", {});
  EXPECT_EQ(advance(path, 'a'), Next::kYours);
  EXPECT_EQ(advance(path, 'a'), Next::kYours);
  expect_error(ErrorKind::kInternal, {"one chunk at a time"}, [&] { advance(path, 'b'); });
  EXPECT_EQ(tree.statistics().made_tokens, static_cast<std::uint64_t>(kChunk));
}

TEST_F(PrefixTreeTest, WhatAProducerAbandonsGoesToTheNextThatAsks) {
  Path producer = read("owner", "a"), second = read("owner", "a"), third = read("owner", "a");
  EXPECT_EQ(advance(producer, 'b'), Next::kYours);
  EXPECT_EQ(advance(second, 'b'), Next::kInMaking);
  EXPECT_EQ(advance(third, 'b'), Next::kInMaking);
  producer.abandon();
  EXPECT_EQ(producer.tokens(), kChunk);  // it keeps what was ready
  EXPECT_EQ(advance(third, 'b'), Next::kYours);
  EXPECT_EQ(advance(second, 'b'), Next::kInMaking);
  EXPECT_EQ(advance(producer, 'b'), Next::kInMaking);
  third = {};  // cancelled
  EXPECT_EQ(advance(second, 'b'), Next::kYours);
  second.seal(new_pages());
  EXPECT_EQ(advance(producer, 'b'), Next::kReady);
}

TEST_F(PrefixTreeTest, AProducerStaysOneWhenItsPathMoves) {
  Path path = tree.match("owner", {});
  advance(path, 'a');
  Path moved = std::move(path);
  EXPECT_EQ(path.tokens(), 0);  // NOLINT: a moved-from path is an empty one
  EXPECT_FALSE(path.making());
  path = {};
  EXPECT_TRUE(moved.making());
  moved.seal(new_pages());
  EXPECT_EQ(moved.tokens(), kChunk);
}

TEST_F(PrefixTreeTest, RefusesAWrongNumberOfTokensOrPages) {
  Path path = tree.match("owner", {});
  expect_error(ErrorKind::kInternal, {"by chunks"}, [&] { path.advance(prompt("ab")); });
  expect_error(ErrorKind::kInternal, {"only a producer"}, [&] { path.seal(new_pages()); });
  advance(path, 'a');
  expect_error(ErrorKind::kInternal, {"C/G pages"}, [&] { path.seal({}); });
  EXPECT_TRUE(path.making());
  EXPECT_THROW(Path().advance(prompt("a")), Error);
  EXPECT_THROW(PrefixTree(pool, kPageSize + 1), Error);
  EXPECT_THROW(PrefixTree(pool, 0), Error);
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedFirst) {
  for (const char* chunks : {"a", "b", "c"}) read("owner", chunks);
  EXPECT_EQ(matched("owner", "a"), 1);  // used again
  EXPECT_EQ(tree.evict(1), kPages);     // pages come by whole chunks
  EXPECT_EQ(pool.used(), 2 * kPages);
  const Path a = read("owner", "a"), c = read("owner", "c");
  EXPECT_EQ(tree.statistics().hit_tokens, 3u * kChunk);
  EXPECT_EQ(matched("owner", "b"), 0);
}

TEST_F(PrefixTreeTest, TheAgeOfAChunkIsThatOfTheLastPathThatHeldIt) {
  Path a = read("owner", "a");
  read("owner", "b");
  a = {};
  tree.evict(1);
  EXPECT_EQ(matched("owner", "a"), 1);
  EXPECT_EQ(matched("owner", "b"), 0);
}

TEST_F(PrefixTreeTest, EvictsFromTheEndUp) {
  read("owner", "abc");
  read("owner", "abd");
  for (const auto& [of_c, of_d] : {std::pair{2, 3}, {2, 2}, {1, 1}, {0, 0}}) {
    EXPECT_EQ(tree.evict(kPages), kPages);
    tree.check_integrity();
    const Path c = tree.match("owner", prompt("abc"));
    EXPECT_EQ(c.tokens(), of_c * kChunk);
    EXPECT_EQ(matched("owner", "abd"), of_d);
  }
  EXPECT_EQ(tree.evict(1), 0u);
}

TEST_F(PrefixTreeTest, NeverEvictsWhatAPathHolds) {
  const Path held = read("owner", "ab");
  read("owner", "abcd");
  read("other", "a");
  EXPECT_EQ(tree.statistics().idle_pages, 3 * kPages);
  EXPECT_EQ(tree.evict(1000), 3 * kPages);
  EXPECT_EQ(tree.statistics().idle_pages, 0u);
  EXPECT_EQ(held.tokens(), 2 * kChunk);
  EXPECT_EQ(matched("owner", "abcd"), 2);
  EXPECT_EQ(pool.used(), 2 * kPages);
}

TEST_F(PrefixTreeTest, AChunkInTheMakingKeepsWhatIsAboveIt) {
  Path producer = read("owner", "a");
  advance(producer, 'b');
  EXPECT_EQ(tree.evict(1000), 0u);
  producer.seal(new_pages());
  EXPECT_EQ(matched("owner", "ab"), 2);
}

TEST_F(PrefixTreeTest, CountsOnlyPagesThatWentBack) {
  std::vector<PageRef> in_use = read("owner", "a").pages();
  read("owner", "b");
  EXPECT_EQ(tree.evict(1), kPages);  // that of "a" gives nothing, so that of "b" goes, too
  EXPECT_EQ(tree.statistics().chunks, 0u);
  EXPECT_EQ(pool.used(), kPages);
  in_use.clear();
  EXPECT_EQ(pool.used(), 0u);
}

// --- with memory of the host ---------------------------------------------------------------------

struct PrefixTreeHost : PrefixTreeTest {
  HostPages host{*backend, kShape, 3 * kPages* pool.page_bytes()};  // of three chunks
  PrefixTree tiered{pool, kChunk, &host};

  void TearDown() override { tiered.check_integrity(); }
  Path read(std::string_view chunks) {
    Path path = tiered.match("owner", {});
    for (const char letter : chunks) {
      if (advance(path, letter) == Next::kYours) path.seal(new_pages());
    }
    return path;
  }
};

TEST_F(PrefixTreeHost, WhatIsEvictedIsFoundAgain) {
  read("abc");
  EXPECT_EQ(tiered.evict(2 * kPages), 2 * kPages);
  EXPECT_EQ(pool.used(), kPages);
  EXPECT_EQ(tiered.statistics().host_pages, 2 * kPages);
  Path path = tiered.match("owner", prompt("abcd"));
  EXPECT_EQ(path.tokens(), kChunk);  // what has pages
  EXPECT_EQ(advance(path, 'b'), Next::kReady);
  EXPECT_EQ(advance(path, 'c'), Next::kReady);
  EXPECT_EQ(advance(path, 'd'), Next::kYours);
  tiered.check_integrity();
  EXPECT_EQ(pool.used(), 3 * kPages);
  EXPECT_EQ(host.used(), 0u);
  EXPECT_EQ(tiered.statistics().from_host, 2 * kPages);
  EXPECT_EQ(tiered.statistics().hit_tokens, 3u * kChunk);
}

TEST_F(PrefixTreeHost, TheLeastRecentlyUsedIsDroppedThere) {
  for (const char* chunks : {"a", "b", "c", "d"}) read(chunks);
  tiered.evict(3 * kPages);
  read("a");             // found, and idle later than "d"
  tiered.evict(kPages);  // "d"
  tiered.evict(kPages);  // "a", for which "b" is dropped
  const auto made = [&](const char* chunk) {
    const std::uint64_t before = tiered.statistics().made_tokens;
    read(chunk);
    return tiered.statistics().made_tokens > before;
  };
  EXPECT_TRUE(made("b"));
  for (const char* kept : {"c", "d", "a"}) EXPECT_FALSE(made(kept)) << kept;
}

TEST_F(PrefixTreeHost, OthersThatNeedTheHostGoBeforeChunks) {
  read("abc");
  tiered.evict(3 * kPages);
  EXPECT_TRUE(tiered.free_on_host(kPages + 1));  // "c" and "b" go
  EXPECT_EQ(tiered.statistics().host_pages, kPages);
  EXPECT_FALSE(tiered.free_on_host(3 * kPages + 1));
  EXPECT_EQ(tiered.statistics().host_pages, kPages);  // nothing goes in vain
  EXPECT_TRUE(tiered.free_on_host(3 * kPages));
  EXPECT_EQ(host.used(), 0u);
  const HostPages::Copy all = host.save(std::vector(3 * kPages, pool.allocate()));
  read("abc");
  tiered.evict(kPages);  // "c" is lost, as without a host
  EXPECT_EQ(tiered.statistics().host_pages, 0u);
  EXPECT_EQ(tiered.match("owner", prompt("abc")).tokens(), 2 * kChunk);
}

TEST_F(PrefixTreeHost, WithoutPagesAChunkStaysThere) {
  PagePool small(*backend, kShape, kPages);
  PrefixTree tree_of_one(small, kChunk, &host);
  Path path = tree_of_one.match("owner", {});
  advance(path, 'a');
  path.seal(std::vector{small.allocate(), small.allocate()});
  path = {};
  tree_of_one.evict(1);
  const std::vector<PageRef> in_use(1, small.allocate());
  path = tree_of_one.match("owner", {});
  expect_error(ErrorKind::kOutOfMemory, {"pages"}, [&] { advance(path, 'a'); });
  tree_of_one.check_integrity();
  EXPECT_EQ(path.tokens(), 0);
  EXPECT_EQ(small.used(), 1u);
  EXPECT_EQ(tree_of_one.statistics().host_pages, kPages);
}

TEST_F(PrefixTreeHost, ClearDropsAllThatNobodyUses) {
  const Path held = read("a");
  read("abc");
  tiered.evict(kPages);
  tiered.clear();
  EXPECT_EQ(host.used(), 0u);
  EXPECT_EQ(pool.used(), kPages);
  EXPECT_EQ(held.tokens(), kChunk);
}

TEST_F(PrefixTreeTest, SaltsThatServeNobodyLeaveNothing) {
  for (int i = 0; i < 100; ++i) tree.match(std::to_string(i), prompt("abc"));
  read("owner", "a");
  {
    Path cancelled = tree.match("other", {});
    advance(cancelled, 'a');
  }
  tree.clear();
  tree.check_integrity();  // refuses a root that serves nobody
  EXPECT_EQ(tree.statistics().paths, 0u);
  EXPECT_EQ(tree.statistics().making, 0u);
  EXPECT_EQ(pool.used(), 0u);
}

TEST_F(PrefixTreeTest, CountsTokensThatWereFoundAndMade) {
  read("owner", "abc");                 // makes 3
  Path path = read("owner", "ab");      // finds 2
  advance(path, 'd');                   // makes 1
  tree.match("owner", prompt("abcx"));  // finds 3
  const PrefixTree::Statistics statistics = tree.statistics();
  EXPECT_EQ(statistics.made_tokens, 4u * kChunk);
  EXPECT_EQ(statistics.hit_tokens, 5u * kChunk);
  EXPECT_EQ(statistics.chunks, 3u);
  EXPECT_EQ(statistics.pages, 3 * kPages);
  EXPECT_EQ(statistics.idle_pages, kPages);
  EXPECT_EQ(statistics.making, 1u);
  EXPECT_EQ(statistics.paths, 1u);
}

TEST_F(PrefixTreeTest, IntegrityNoticesAPageOfTwoChunks) {
  const std::vector<PageRef> pages = new_pages();
  Path path = tree.match("owner", {});
  for (const char letter : {'a', 'b'}) {
    tree.check_integrity();
    advance(path, letter);
    path.seal(pages);
  }
  expect_error(ErrorKind::kInternal, {"share a page"}, [&] { tree.check_integrity(); });
  path = {};
  tree.clear();
}

// Recursion by depth would need more stack than a thread has.
TEST_F(PrefixTreeTest, APathOf200000ChunksIsDroppedEvictedAndDestroyed) {
  const std::string chunks(200'000, 'a');
  EXPECT_EQ(read("owner", chunks).pages().size(), chunks.size() * kPages);
  EXPECT_EQ(matched("owner", chunks), 200'000);
  tree.check_integrity();
  EXPECT_EQ(tree.evict(50'000), 50'000u);
  EXPECT_EQ(matched("owner", chunks), 175'000);
  PagePool other_pool(*backend, kShape);
  {
    PrefixTree deep(other_pool, kChunk);
    Path path = deep.match("owner", {});
    for (int i = 0; i < 200'000; ++i) {
      path.advance(prompt("a"));
      path.seal(std::vector{other_pool.allocate(), other_pool.allocate()});
    }
    path = {};
  }
  EXPECT_EQ(other_pool.used(), 0u);
}

// A scan of the tree in any operation would take 10,000 times as long for 100 times the chunks.
// Memory that is farther away costs a few times, so expect_linear_time() would be too strict.
TEST_F(PrefixTreeTest, ManyChunksBesideEachOtherAreNotScanned) {
  const auto name = [](int i) { return std::vector<TokenId>(kChunk, i); };
  const auto seconds = [&](int chunks) {
    const std::clock_t start = std::clock();
    for (int i = 0; i < chunks; ++i) {
      Path path = tree.match("owner", {});
      path.advance(name(i));
      path.seal(new_pages());
    }
    for (int i = 0; i < chunks; ++i) tree.match("owner", name(i));
    while (tree.evict(1) > 0) continue;
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  const double few = std::min({seconds(300), seconds(300), seconds(300)});
  EXPECT_LT(seconds(30'000) / few, 1000) << few << " s for 300";
}

}  // namespace
}  // namespace quantspec
