// Random sequences of operations on the tree, and on a model that knows no tree: a table from a
// chunk's whole beginning to its pages, in which the next to evict is searched for. What a chunk's
// pages hold goes with it to the host's memory and back.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "kv_cache/prefix_tree.h"
#include "kv_cache/prefix_tree_test_support.h"

namespace quantspec {
namespace {

using Next = PrefixTree::Next;
using Path = PrefixTree::Path;

// A chunk by its whole beginning: the salt's letter, then its chunks' letters.
struct ModelChunk {
  std::vector<const void*> pages;  // none: in the making, or on the host
  int holders = 0;
  bool on_host = false;
  std::uint64_t idle_since = 0;  // or there
  std::uint32_t content = 0;     // of each page, first bytes of both planes
};

struct Request {
  Path path;
  std::string name;  // of its last ready chunk
  std::string making;
  std::vector<PageRef> pages;  // that it uses beside the tree
};

class World {
 public:
  static constexpr int kRequests = 6;
  static constexpr int kKinds = 22;  // of operations
  static constexpr int kNumbers = 2 * 3 * 243;

  World(std::size_t max_pages, std::size_t host_pages)
      : backend_(make_backend({"reference", 1})),
        pool_(*backend_, kShape, max_pages),
        host_(*backend_, kShape, host_pages * pool_.page_bytes()),
        tree_(pool_, kChunk, host_pages > 0 ? &host_ : nullptr) {
    pool_.reserve(max_pages);
  }

  const PagePool& pool() const { return pool_; }
  const PrefixTree& tree() const { return tree_; }
  std::uint64_t evicted() const { return evicted_; }  // pages

  // One operation on request `who`.
  void operate(int kind, int who, int number) {
    Request& request = requests_[who];
    const char letter = static_cast<char>('a' + number % 3);
    if (kind <= 2) match(request, number);
    if (kind >= 3 && kind <= 8) advance(request, letter);
    if (kind >= 9 && kind <= 14) seal(request);
    if (kind == 15) abandon(request);
    if (kind == 16) drop(request);
    if (kind == 17) evict(number % 12);
    if (kind == 18) request.pages.clear();
    if (kind == 19) std::swap(request, requests_[number % kRequests]);
    if (kind == 20) keep_on_host(number % 6);
    if (kind == 21) kept_ = {};
  }

  void finish() {
    for (Request& request : requests_) drop(request);
    for (Request& request : requests_) request.pages.clear();
    kept_ = {};
    tree_.clear();
    chunks_.clear();
    verify();
    check(pool_.used() == 0, "pages are lost");
    check(host_.used() == 0, "slots are lost");
  }

  // The tree and the pool against the table.
  void verify() const {
    tree_.check_integrity();
    std::size_t ready = 0, idle = 0, on_host = 0;
    std::set<const void*> used;
    for (const auto& [name, chunk] : chunks_) {
      ready += !chunk.pages.empty();
      idle += chunk.holders == 0 && !chunk.on_host;
      on_host += chunk.on_host;
      used.insert(chunk.pages.begin(), chunk.pages.end());
    }
    for (const Request& request : requests_) {
      verify(request);
      const auto pages = identities(request.pages);
      used.insert(pages.begin(), pages.end());
    }
    const PrefixTree::Statistics statistics = tree_.statistics();
    check(statistics.chunks == ready, "chunks");
    check(statistics.making == chunks_.size() - ready - on_host, "chunks in the making");
    check(statistics.host_pages == on_host * kPages, "pages on the host");
    check(host_.used() == on_host * kPages + kept_.slots(), "slots of the host");
    check(statistics.to_host == to_host_ && statistics.from_host == from_host_, "moves");
    check(statistics.idle_pages == idle * kPages, "idle pages");
    check(statistics.hit_tokens == hits_ * kChunk, "hits");
    check(statistics.made_tokens == made_ * kChunk, "made");
    check(pool_.used() == used.size(), "a page is lost");
  }

 private:
  void verify(const Request& request) const {
    std::vector<const void*> pages;
    for (std::size_t n = 2; n <= request.name.size(); ++n) {
      const auto chunk = chunks_.find(request.name.substr(0, n));
      check(chunk != chunks_.end(), "a chunk that is held is gone");
      pages.insert(pages.end(), chunk->second.pages.begin(), chunk->second.pages.end());
    }
    check(identities(request.path.pages()) == pages, "pages of a path");
    check(request.path.making() == !request.making.empty(), "a producer");
    const std::size_t chunks = std::max<std::size_t>(request.name.size(), 1) - 1;
    check(request.path.tokens() == static_cast<int>(chunks) * kChunk, "tokens of a path");
    const std::size_t last = chunks > 0 ? kPages : 0;
    check(identities(request.path.last_pages()) == std::vector(pages.end() - last, pages.end()),
          "last pages");
  }

  void hold(Request& request, char letter) {
    request.name += letter;
    ++chunks_.at(request.name).holders;
    ++hits_;
  }

  void match(Request& request, int number) {
    drop(request);
    request.name = static_cast<char>('x' + number % 2);
    std::string wanted;
    for (int digits = number / 2; digits > 2; digits /= 3) {
      wanted += static_cast<char>('a' + digits % 3);
    }
    std::vector<TokenId> tokens = prompt(wanted);
    tokens.resize(tokens.size() + number % kChunk, 7);  // the beginning of another
    request.path = tree_.match(request.name, tokens);
    for (const char letter : wanted) {
      const auto chunk = chunks_.find(request.name + letter);
      if (chunk == chunks_.end() || chunk->second.pages.empty()) break;
      hold(request, letter);
    }
  }

  void advance(Request& request, char letter) {
    if (request.name.empty()) return;
    if (!request.making.empty()) letter = request.making.back();
    const std::string name = request.name + letter;
    const auto chunk = chunks_.find(name);
    if (chunk != chunks_.end() && chunk->second.on_host) {
      return take_from_host(request, chunk->second, letter);
    }
    const Next next = request.path.advance(prompt({&letter, 1}));
    if (name == request.making) {
      check(next == Next::kYours, "a producer waits for itself");
    } else if (chunk == chunks_.end()) {
      check(next == Next::kYours, "nobody makes the chunk");
      request.making = name;
      chunks_[name].holders = 1;
      ++made_;
    } else if (chunk->second.pages.empty()) {
      check(next == Next::kInMaking, "a chunk has two producers");
    } else {
      check(next == Next::kReady, "a ready chunk is not found");
      hold(request, letter);
    }
  }

  // Goes on to a chunk in the host's memory, if there are pages.
  void take_from_host(Request& request, ModelChunk& chunk, char letter) {
    chunk.on_host = false;
    chunk.holders = 1;  // what follows does not drop it
    leaving_ = kPages;
    const std::size_t free = pool_.free();
    const bool fits = free + (free < kPages ? model_evict(kPages - free) : 0) >= kPages;
    leaving_ = chunk.holders = 0;
    try {
      check(request.path.advance(prompt({&letter, 1})) == Next::kReady, "a chunk is lost");
      check(fits, "a page is in two places");
    } catch (const Error& error) {
      check(!fits && error.kind() == ErrorKind::kOutOfMemory, "there was room");
      chunk.on_host = true;
      chunk.idle_since = ++clock_;
      return;
    }
    chunk.pages = identities(request.path.last_pages());
    for (const PageRef& page : request.path.last_pages()) {
      check(content(page) == chunk.content, "what came back is not what went");
    }
    from_host_ += kPages;
    hold(request, letter);
  }

  static void write(const PageRef& page, std::uint32_t content) {
    std::memcpy(page.planes().upper, &content, sizeof(content));
    std::memcpy(page.planes().lower, &content, sizeof(content));
  }
  static std::uint32_t content(const PageRef& page) {
    std::uint32_t upper = 0, lower = 0;
    std::memcpy(&upper, page.planes().upper, sizeof(upper));
    std::memcpy(&lower, page.planes().lower, sizeof(lower));
    check(upper == lower, "a plane is another page's");
    return upper;
  }

  void seal(Request& request) {
    if (request.making.empty()) return;
    if (pool_.free() < kPages) evict(kPages);
    if (pool_.free() < kPages) return abandon(request);
    std::vector<PageRef> pages{pool_.allocate(), pool_.allocate()};
    for (const PageRef& page : pages) write(page, seals_);
    request.path.seal(pages);
    chunks_.at(request.making).pages = identities(pages);
    chunks_.at(request.making).content = seals_;
    request.name = std::exchange(request.making, {});
    if (++seals_ % 2 == 0) request.pages = std::move(pages);  // its cache reads them, too
  }

  void abandon(Request& request) {
    request.path.abandon();
    if (!request.making.empty()) chunks_.erase(std::exchange(request.making, {}));
  }

  void drop(Request& request) {
    if (!request.making.empty()) chunks_.erase(std::exchange(request.making, {}));
    for (; request.name.size() > 1; request.name.pop_back()) {
      ModelChunk& chunk = chunks_.at(request.name);
      if (--chunk.holders == 0) chunk.idle_since = ++clock_;
    }
    request.name.clear();
    request.path = {};
  }

  // The chunk without others of its kind below it that was idle, or on the host, for longest.
  std::map<std::string, ModelChunk>::iterator oldest_leaf(bool on_host) {
    auto oldest = chunks_.end();
    for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
      if (chunk->second.holders > 0 || chunk->second.on_host != on_host) continue;
      // In order of names, those below it come next.
      const bool leaf = std::none_of(
          std::next(chunk),
          std::find_if_not(
              std::next(chunk), chunks_.end(),
              [&](const auto& after) { return after.first.starts_with(chunk->first); }),
          [&](const auto& below) { return below.second.on_host == on_host; });
      if (!leaf) continue;
      if (oldest == chunks_.end() || chunk->second.idle_since < oldest->second.idle_since) {
        oldest = chunk;
      }
    }
    return oldest;
  }

  bool model_free_on_host(std::size_t slots) {
    const std::size_t others = kept_.slots() + leaving_;
    const auto used = [&] {
      const auto on_host = [](const auto& chunk) { return chunk.second.on_host; };
      return others + kPages * std::ranges::count_if(chunks_, on_host);
    };
    if (others + slots > host_.capacity()) return false;
    while (used() + slots > host_.capacity()) chunks_.erase(oldest_leaf(true));
    return true;
  }

  // What evict() does to the table. Returns how many pages went back.
  std::size_t model_evict(std::size_t wanted) {
    std::set<const void*> in_use;
    for (const Request& request : requests_) {
      const auto pages = identities(request.pages);
      in_use.insert(pages.begin(), pages.end());
    }
    std::size_t freed = 0;
    for (auto leaf = oldest_leaf(false); freed < wanted && leaf != chunks_.end();
         leaf = oldest_leaf(false)) {
      for (const void* page : leaf->second.pages) freed += !in_use.contains(page);
      if (host_.capacity() > 0 && model_free_on_host(kPages)) {
        leaf->second.pages.clear();
        leaf->second.on_host = true;
        leaf->second.idle_since = ++clock_;
        to_host_ += kPages;
      } else {
        chunks_.erase(leaf);
      }
    }
    evicted_ += freed;
    return freed;
  }
  void evict(std::size_t wanted) {
    const std::size_t freed = model_evict(wanted);
    check(tree_.evict(wanted) == freed, "evicted pages");
  }

  // Somebody else's, which goes before chunks.
  void keep_on_host(std::size_t slots) {
    if (host_.capacity() == 0) return;
    kept_ = {};
    const bool fits = model_free_on_host(slots);
    check(tree_.free_on_host(slots) == fits, "slots of the host");
    if (fits && pool_.free() > 0) kept_ = host_.save(std::vector(slots, pool_.allocate()));
  }

  std::unique_ptr<Backend> backend_;
  PagePool pool_;
  HostPages host_;
  PrefixTree tree_;
  std::array<Request, kRequests> requests_;
  std::map<std::string, ModelChunk> chunks_;
  HostPages::Copy kept_;
  std::size_t leaving_ = 0;  // slots of a chunk that is on its way back
  std::uint64_t clock_ = 0, evicted_ = 0, hits_ = 0, made_ = 0, to_host_ = 0, from_host_ = 0;
  std::uint32_t seals_ = 0;
};

RC_GTEST_PROP(PrefixTreeProperty, EveryOperationMatchesATableOfBeginnings, ()) {
  const auto below = [](int end) { return rc::gen::inRange(0, end); };
  using Operation = std::tuple<int, int, int>;
  const auto operation =
      rc::gen::tuple(below(World::kKinds), below(World::kRequests), below(World::kNumbers));
  // As many operations in the first case as in the last, and all kinds of them.
  constexpr int kMost = 800;
  const auto operations =
      *rc::gen::resize(kMost, rc::gen::container<std::vector<Operation>>(operation));
  const auto pages = *rc::gen::resize(kMost, rc::gen::inRange<std::size_t>(1, 60));
  const auto host_pages = *rc::gen::resize(kMost, rc::gen::inRange<std::size_t>(0, 30));
  World world(pages, host_pages);
  for (const auto& [kind, who, number] : operations) {
    world.operate(kind, who, number);
    world.verify();
  }
  world.finish();
}

TEST(PrefixTreeScale, AHundredThousandOperationsInAPoolThatDoesNotGrow) {
  constexpr std::size_t kBudget = 400;
  World world(kBudget, kBudget / 4);
  std::mt19937 random(1);
  const auto draw = [&](int below) { return std::uniform_int_distribution(0, below - 1)(random); };
  for (int i = 0; i < 100'000; ++i) {
    world.operate(draw(World::kKinds), draw(World::kRequests), draw(World::kNumbers));
    if (i % 20 == 0) world.verify();
  }
  EXPECT_EQ(world.pool().reserved(), kBudget);
  EXPECT_GT(world.evicted(), 5'000u);
  EXPECT_GT(world.tree().statistics().made_tokens, 5'000u * kChunk);
  EXPECT_GT(world.tree().statistics().hit_tokens, 5'000u * kChunk);
  EXPECT_GT(world.tree().statistics().to_host, 5'000u);
  EXPECT_GT(world.tree().statistics().from_host, 500u);
  world.finish();
}

}  // namespace
}  // namespace quantspec
