// The hierarchical KV cache of one sequence: one cache, readable at 4 bits by the draft and at 8
// bits by the target (sections 2-4 of docs/design.md).
//
//     positions  0 ........ B ........ B+G ........ n
//                | pages    | ring: full precision  |
//                | 4+4 bits | G..2G tokens          |
//
// A query at position p reads positions below B(p) = G * max(0, p / G - 1) from pages and the rest
// in full precision. The rule depends on p alone, so the target is a pure function of the tokens;
// to keep it, one forward never spans a multiple of G, and pages are made between forwards.
//
// A prompt is read in chunks of C tokens that begin at multiples of C: a position reads the chunks
// before its own from pages and its own chunk in full precision. So what a prompt leaves here is a
// function of its tokens, wherever its reading began, and whole chunks can be shared.
//
// INVARIANTS  pages hold [0, B) at least, made from target KV only, immutable; B is a multiple of G
//             the ring holds [B, n), slot = position mod 2G; n - B <= 2G
//             no speculative token is ever quantized, so rollback is one integer
//             of the prompt's whole chunks every page is there, also beyond B
//
// The cache owns its lengths (KvLengths); nobody else keeps one. Not thread-safe; one thread a
// cache. In decoding it allocates nothing but slabs of pages (PagePool).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/kv_ops.h"
#include "backend/params/kv.h"
#include "kv_cache/host_pages.h"
#include "kv_cache/kv_access.h"
#include "kv_cache/kv_lengths.h"
#include "kv_cache/page_pool.h"
#include "kv_cache/page_selector.h"

namespace quantspec {

class PromptTail;

class KvCache {
 public:
  // capacity: the most tokens it may hold. `ops` and `pool` (of the same shape) outlive it. Throws
  // kInvalidRequest for a layer that does not exist. REQUIRES: what the options' accesses gather is
  // brought along.
  KvCache(KvOps& ops, PagePool& pool, int capacity, KvOptions options = {});
  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&& other) noexcept;
  ~KvCache();
  // A cache of its own that goes on from here: pages are shared, the rest is copied. Of what drafts
  // read, it gives `accesses` only, which this one must.
  KvCache fork(std::vector<KvAccess> accesses) const;

  const KvShape& shape() const { return pool_->shape(); }
  KvStore store() const { return options_.store; }
  // KvLengths':
  int capacity() const { return lengths_.capacity(); }
  int length() const { return lengths_.length(); }        // n
  int quantized() const { return lengths_.quantized(); }  // B
  int in_ring() const { return lengths_.in_ring(); }      // as KvLengths has it
  int committed() const { return lengths_.committed(); }
  int max_rows() const { return lengths_.max_rows(); }

  // --- decoding: reserve, any number of passes over the rows that were reserved, settle ---
  // Makes ready for passes over `rows` positions from length() on, and quantizes what they will
  // read from a page: the only place in decoding that does. REQUIRES: 1 <= rows <= max_rows().
  // Throws kInvalidRequest when the context is full.
  void reserve(int rows);
  int reserved() const { return lengths_.reserved(); }
  // The first `rows` of what is reserved are in the cache now, as a target pass wrote them.
  void settle(int rows) { lengths_.settle(rows); }
  // Forgets positions from new_length on, for a stop inside an accepted run.
  // REQUIRES: committed() <= new_length <= length(), and no prompt is forgotten.
  void truncate(int new_length) { lengths_.truncate(new_length); }
  void clear();
  // Whether target passes record what kByMass chooses by, which takes them time: until clear(), by
  // default they do. After one, mass_recorded().
  void record_mass(bool wanted) { records_now_ = wanted; }
  void mass_recorded() {
    if (records_now_) selector_.mass_recorded();
  }

  // What a pass over reserved rows reads and, through `full`, writes. Valid until the cache
  // changes. REQUIRES: supports(access). Lists of pages are those that were chosen last
  // (Backend::select_pages).
  KvView view(int layer, const KvAccess& access) const;
  bool supports(int layer, const KvAccess& access) const;
  // A number that changes when views come to show other numbers of listed pages, or other gathered
  // tokens, and that does not come back.
  std::uint64_t list_variant() const;

  // --- prefill (section 4): begin_prompt, a Chunk for each chunk, end_prompt ---
  // C, a multiple of the page size.
  int chunk() const { return lengths_.chunk(); }
  // Makes ready to read a text of num_tokens, of which [0, length()) were here. Keeps the whole
  // chunks that were read as prompts; what came after them is forgotten. Returns the position from
  // which the text is to be read, a multiple of C. Throws kInvalidRequest where it does not fit.
  // REQUIRES: num_tokens > length().
  int begin_prompt(int num_tokens);
  // So many tokens of a text of num_tokens may be attached: the others must be read, for the ring
  // and for the logits of the last one. A multiple of C.
  int most_attached(int num_tokens) const { return lengths_.most_attached(num_tokens); }
  // Appends whole chunks that another cache read after the same tokens: their pages, C / G each.
  // REQUIRES: all of [0, length()) is whole chunks; the text to be read is long enough
  // (most_attached), or ends behind the start of `tail`, whose tokens the text has: from there
  // comes what the ring holds before that start.
  void attach(std::span<const PageRef> pages, const PromptTail* tail = nullptr);
  // Their pages alone: the tokens are still to be read, for what the ring holds of them.
  void share(std::span<const PageRef> pages);
  // Those of positions [first, last), multiples of the page size.
  std::span<const PageRef> pages_of(int first, int last) const;
  int num_pages() const { return static_cast<int>(pages_.size()); }
  // One chunk on its way through the layers, from the first to the last. The passes of a layer
  // write the chunk's K and V to view(layer).full and read view(layer). Abandoned before finish(),
  // it leaves the cache empty.
  class Chunk {
   public:
    // The next num_tokens. `scratch`: of chunk_scratch_bytes(), for as long as the chunk lives.
    // REQUIRES: 1 <= num_tokens <= C; length() is a multiple of C.
    Chunk(KvCache& cache, int num_tokens, std::byte* scratch);
    ~Chunk();
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;

    int first_position() const { return first_; }
    int num_tokens() const { return end_ - first_; }
    KvView view(int layer) const;
    // The layer's K and V of the first `count` rows, from a prompt that begins with their tokens.
    // REQUIRES: the tail has them; query_rows() is 0.
    void take(int layer, const PromptTail& tail, int count);
    // The layer's end of the prompt, before end_layer(). REQUIRES: this is its last chunk.
    void save(int layer, PromptTail& tail) const;
    // The last so many rows' queries are wanted by end_layer(); 0: none.
    int query_rows() const;
    // Into pages and ring. queries: [query_rows(), num_heads, head_dim].
    void end_layer(int layer, std::span<const float> queries = {}, int num_heads = 0);
    void finish();

   private:
    KvCache& cache_;
    int first_;
    int end_;
    int first_page_;  // that this chunk makes: those before it are shared
    FullKv scratch_;
    bool finished_ = false;
  };
  void end_prompt();

  // --- preemption: what a cache holds goes to the host's memory and comes back, bit for bit ---
  // What it holds beyond the first tokens of a prompt.
  struct Saved {
    int first;  // so many, whole chunks
    KvLengths lengths;
    HostPages::Copy pages;
    HostPages::Copy ring;
  };
  // Slots of the host that save() takes.
  std::size_t slots_to_save(const HostPages& host, int first) const;
  // REQUIRES: so many are free; nothing is gathered, no chunk of a prompt is on its way, and
  // [0, first) are whole chunks of one.
  Saved save(HostPages& host, int first) const;
  // Goes on where a cache of the same options was saved. What drafts choose pages by is not there
  // until a target pass has recorded it. REQUIRES: [0, length()) are the same first tokens.
  void restore(HostPages& host, const Saved& saved);

  // --- memory ---
  std::size_t page_bytes() const { return pages_.size() * pool_->page_bytes(); }
  std::size_t ring_bytes() const { return ring_.size(); }  // copies in full precision included
  std::size_t gathered_bytes() const;
  // The most that a cache of `capacity` tokens may take: pages, ring, and tables of where its pages
  // are and of which drafts read; and the scratch of a chunk of so many tokens.
  static std::size_t page_bytes_for(const KvShape& shape, int capacity, KvStore store);
  static std::size_t ring_bytes_for(const KvShape& shape, const KvOps& ops, int capacity,
                                    const KvOptions& options);
  static std::size_t table_bytes_for(const KvShape& shape, int capacity, const KvOptions& options);
  static std::size_t chunk_scratch_bytes(const KvShape& shape, const KvOps& ops, int chunk);

 private:
  KvCache(const KvCache& other, std::vector<KvAccess> accesses);
  // Room for what capacity() tokens need, so that decoding allocates no list that grows.
  void allocate_tables();
  void commit();
  int max_pages() const { return lengths_.first_full(capacity()) / shape().page_size; }
  void add_pages(int count);
  // Pages [first_page, num_pages).
  std::span<const PagePlanes> planes(int first_page, int num_pages) const;

  KvOps* ops_;
  PagePool* pool_;
  KvOptions options_;
  KvLengths lengths_;
  bool chooses_pages_ = false;
  bool records_mass_ = false;  // someone chooses by it
  bool records_now_ = true;
  std::vector<PageRef> pages_;  // [0, B) at least
  mutable Buffer planes_;       // the same pages' PagePlanes, as the backend reads them
  Buffer ring_;
  std::vector<FullKv> rings_;                 // [num_layers], in ring_
  std::unique_ptr<GatheredTokens> gathered_;  // null: nobody wants any
  PageSelector selector_;
  std::uint64_t list_changes_ = 0;  // but for those when the first mass is recorded
};

}  // namespace quantspec
