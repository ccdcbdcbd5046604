// Prompts that were read, so that later prompts with the same beginning need not be: a tree over
// chunks. A node is one canonical chunk, C tokens on the absolute grid and their C/G pages; a way
// down from a root is a prompt's beginning. A chunk's pages are a function of the tokens up to its
// end, so what is found here is what the request would have computed.
//
//     salt ── [0, C) ──┬── [C, 2C) ── [2C, 3C)      ready: pages that anybody may attach to
//                      └── [C, 2C)'                 in the making: its producer reads it now
//
// A chunk is found by its tokens themselves, not by a hash, so no prompt can collide with another.
// Owners do not see each other's chunks: each salt has a root of its own. A request holds a Path.
//
// Idle chunks, those that no path holds, give their pages back when others need them. What was in
// them moves to the host's memory, as far as there is some, and to new pages when a path comes.
//
// INVARIANTS  who holds a chunk holds the chunks above it; what a path holds is not evicted
//             a chunk in the making is held by one path, its producer, and has no chunks below it
//             idle chunks with pages are kept in the order in which they became idle, and a path
//             lets go from its end up: the first has no chunks with pages below it
//             below a chunk in the host's memory are such chunks alone; they are kept in the order
//             in which they moved there: the first has no chunks below it
//
// So eviction takes the first of a list, the least recently used of all. Nothing scans the tree or
// recurses by its depth: with k chunks beside each other, a chunk is found or evicted in
// O(C log k), and held or let go in O(1).
//
// Not thread-safe: one thread for the tree, its paths and the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "kv_cache/host_pages.h"
#include "kv_cache/page_pool.h"

namespace quantspec {

class PrefixTree {
 private:
  struct Node;

 public:
  // `pool` and `host` outlive the tree; null: what is evicted is gone.
  // REQUIRES: chunk_tokens is a multiple of the pool's page size.
  PrefixTree(PagePool& pool, int chunk_tokens, HostPages* host = nullptr);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  int chunk_tokens() const { return chunk_tokens_; }
  std::size_t pages_per_chunk() const { return pages_per_chunk_; }

  // What a path finds below its end.
  enum class Next {
    kReady,     // the chunk; the path holds it now
    kInMaking,  // the chunk, which another path is making: ask again after that
    kYours,     // nothing; this path is the chunk's producer now: seal() or abandon() it
  };

  // The chunks that a request holds, from the root on. They count as used until it lets go of them.
  // Empty, moved from or dropped, it holds none; dropped before seal(), it abandons what it was
  // making. The tree outlives it.
  class Path {
   public:
    Path() = default;
    Path(Path&& other) noexcept { swap(other); }
    Path& operator=(Path other) noexcept {
      swap(other);
      return *this;
    }
    ~Path();

    int tokens() const;                           // of the ready chunks: a multiple of C
    std::vector<PageRef> pages() const;           // of the ready chunks, in order: one per G tokens
    std::span<const PageRef> last_pages() const;  // of the last ready chunk: C/G, or none
    bool making() const;                          // this path is a producer

    // Goes on to the chunk of these C tokens, for which pages are taken where it is in the host's
    // memory: throws kOutOfMemory where there are none, and the path is as it was. A producer that
    // asks again gets kYours again.
    // REQUIRES: chunk.size() == C; a producer asks for no other chunk.
    Next advance(std::span<const TokenId> chunk);
    // The chunk that this path makes is ready for all: these are its pages. REQUIRES: making();
    // pages.size() == C/G; they are not in the tree yet.
    void seal(std::span<const PageRef> pages);
    // Lets go of all, as if it had not been looked for: what was found is no hit.
    void disown();
    // Gives up the chunk in the making, if there is one: the next that asks for it makes it.
    void abandon();

   private:
    friend class PrefixTree;
    Path(PrefixTree& tree, Node& root);
    void swap(Path& other) noexcept;
    void take(Node& ready);

    PrefixTree* tree_ = nullptr;
    Node* end_ = nullptr;  // a root, a ready chunk, or the one in the making
    int chunks_ = 0;       // ready ones
  };

  // The longest path of ready chunks with pages that `tokens` begin with. Chunks in the making, and
  // in the host's memory, are found by advance(). The last token of a prompt must be read for its
  // logits, so tokens.first(n - 1) is what a prompt of n asks for.
  Path match(std::string_view salt, std::span<const TokenId> tokens);

  // Takes the pages of idle chunks, the least recently used first, until `pages` pages went back to
  // the pool or none is idle. Returns how many went back: pages that sequences still use do not.
  std::size_t evict(std::size_t pages);
  // Drops chunks in the host's memory, the least recently used first, until so many of its slots
  // are free. Returns whether they are; if not, nothing was dropped. REQUIRES: there is a host.
  bool free_on_host(std::size_t slots);
  // Drops all that is idle.
  void clear();

  struct Statistics {
    std::size_t chunks = 0;         // ready ones with pages
    std::size_t pages = 0;          // of them
    std::size_t idle_pages = 0;     // those of them that evict() takes at most
    std::size_t host_pages = 0;     // of chunks in the host's memory
    std::size_t making = 0;         // chunks in the making
    std::size_t paths = 0;          // that hold something, be it a root alone
    std::uint64_t hit_tokens = 0;   // of chunks that a path found, since the tree was made
    std::uint64_t made_tokens = 0;  // of chunks for which a path became the producer
    std::uint64_t to_host = 0;      // pages that moved there, since the tree was made
    std::uint64_t from_host = 0;
  };
  Statistics statistics() const;

  // Throws kInternal, saying what is wrong, where the structure contradicts itself. Looks at all.
  void check_integrity() const;

 private:
  // By content: a span has no order of its own.
  struct TokensBefore {
    bool operator()(std::span<const TokenId> a, std::span<const TokenId> b) const;
  };
  using Nodes = std::list<std::unique_ptr<Node>>;

  Node& root_of(std::string_view salt);
  Node* find(const Node& parent, std::span<const TokenId> chunk) const;
  Node& make(Node& parent, std::span<const TokenId> chunk);
  bool is_making(const Node& node) const;
  bool is_on_host(const Node& node) const;
  static void move(Node& node, Nodes& state);
  void hold(Node& node);
  void let_go(Node& node);
  void remove(Node& leaf);
  bool move_to_host(Node& node);
  void take_from_host(Node& node);
  void remove_if_empty(const Node& node);
  std::size_t count_pages(std::size_t chunks) const { return chunks * pages_per_chunk_; }
  std::size_t check_links(const Node& node) const;
  void check_state(const Node& node) const;
  void check_idle_order() const;
  void check_pages() const;

  PagePool& pool_;
  HostPages* host_;
  int chunk_tokens_;
  std::size_t pages_per_chunk_;
  // A root is a chunk of no tokens and no pages: it is there while a path or a chunk needs it.
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;
  // All chunks, flat, each in the list of its state; idle ones in the order of INVARIANTS.
  Nodes making_;
  Nodes held_;
  Nodes idle_;
  Nodes on_host_;
  std::size_t num_paths_ = 0;
  std::uint64_t hit_tokens_ = 0;
  std::uint64_t made_tokens_ = 0;
  std::uint64_t to_host_ = 0;
  std::uint64_t from_host_ = 0;
};

}  // namespace quantspec
