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
// INVARIANTS  pages hold [0, B), made from target KV only, immutable; B is a multiple of G
//             the ring holds [B, n), slot = position mod 2G; n - B <= 2G
//             no speculative token is ever quantized, so rollback is one integer
//
// The cache owns its lengths; nobody else keeps one. Not thread-safe; one thread a cache. In
// decoding it allocates nothing but slabs of pages (PagePool) and the gathered tokens of kSnap, and
// of kRetrieval after a short prompt (GatheredKv).
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "kv_cache/gathered_kv.h"
#include "kv_cache/kv_access.h"
#include "kv_cache/page_pool.h"
#include "kv_cache/page_selector.h"

namespace quantspec {

class KvCache {
 public:
  // capacity: the most tokens it may hold. `backend` and `pool` (of the same shape) outlive it.
  // Throws kInvalidRequest for a layer that does not exist or a budget that is too small.
  KvCache(Backend& backend, PagePool& pool, int capacity, KvOptions options = {});
  // A cache of its own that goes on from here: pages are shared, the rest is copied. Of what drafts
  // read, it gives `accesses` only, which this one must.
  KvCache fork(std::vector<KvAccess> accesses) const;

  const KvShape& shape() const { return pool_->shape(); }
  int capacity() const { return capacity_; }
  int length() const { return length_; }  // n: positions [0, n) are in the cache
  // Positions below it are final: the cache cannot be truncated to less.
  int committed() const { return quantized_ == 0 ? 0 : quantized_ + shape().page_size; }
  int quantized() const { return quantized_; }  // B: positions [0, B) are in pages
  // The most tokens that the next forward may process, so that it does not span a multiple of G.
  int max_extend() const;

  // --- decoding ---
  // Makes room for num_tokens at the end and returns the first one's position. Once per forward.
  // REQUIRES: commit() was called since the length last changed; 1 <= num_tokens <= max_extend().
  // Throws kInvalidRequest when the context is full.
  int extend(int num_tokens);
  // Forgets positions from new_length on. REQUIRES: committed() <= new_length <= length().
  void truncate(int new_length);
  // Quantizes what the next position will read from a page: the only place in decoding that does.
  void commit();
  void clear();

  // What a pass reads and, through `full`, writes. Valid until the cache changes or the layer is
  // viewed again. REQUIRES: supports(access). For kByBound, choose_pages() completes it.
  KvView view(int layer, const KvAccess& access);
  // Chooses the pages that a row with these queries ([num_heads, head_dim]) reads.
  void choose_pages(const KvAccess& access, const float* q, int num_heads, KvView& view);
  bool supports(int layer, const KvAccess& access) const;
  // A number that changes when views come to show other numbers of listed pages or of gathered
  // tokens, and that does not come back.
  int list_variant() const;

  // --- prefill, layer-major (section 4) ---
  // Appends num_tokens: all of them go through layer 0, then through layer 1, and so on, reading
  // each other in full precision and a cached prefix as decoding does. Peak memory is the pages and
  // one layer in full precision. Abandoned before finish(), it leaves the cache empty.
  class Prefill {
   public:
    Prefill(KvCache& cache, int num_tokens);
    ~Prefill();
    Prefill(const Prefill&) = delete;
    Prefill& operator=(const Prefill&) = delete;

    int first_position() const { return cache_.length_; }
    // This layer's K and V of all positions; the prefix is there, the new tokens are to be written.
    FullKv begin_layer(int layer);
    // The last so many new rows' queries are wanted by end_layer(); 0: none.
    int query_rows() const;
    // Into pages, ring and gathered tokens. queries: [query_rows(), num_heads, head_dim].
    void end_layer(int layer, std::span<const float> queries = {}, int num_heads = 0);
    void finish();

   private:
    KvCache& cache_;
    int new_length_;
    int new_quantized_;
    Buffer scratch_;
    FullKv full_;
    bool finished_ = false;
  };

  // --- memory ---
  std::size_t page_bytes() const { return pages_.size() * pool_->page_bytes(); }
  std::size_t ring_bytes() const { return ring_.size(); }  // copies in full precision included
  std::size_t gathered_bytes() const;
  // The most that a cache of `capacity` tokens may take: pages, ring, gathered tokens (of kSnap, at
  // first); and prefill's scratch.
  static std::size_t page_bytes_for(const KvShape& shape, int capacity, KvStore store);
  static std::size_t ring_bytes_for(const KvShape& shape, const Backend& backend, int capacity,
                                    const KvOptions& options);
  static std::size_t gathered_bytes_for(const KvShape& shape, const Backend& backend,
                                        const KvOptions& options);
  static std::size_t scratch_bytes_for(const KvShape& shape, const Backend& backend, int capacity);

 private:
  KvCache(const KvCache& other, std::vector<KvAccess> accesses);
  // B of a cache of so many tokens.
  int first_full(int length) const;
  // Room for what capacity() tokens need, so that decoding allocates no list that grows.
  void reserve();
  int max_pages() const { return first_full(capacity_) / shape().page_size; }
  const GatheredKv* gathered(const KvAccess& access) const;
  int budget_pages(const KvAccess& access) const;
  void add_pages(int count);
  std::span<const PagePlanes> planes(int first_page) const;
  void require_room(int num_tokens) const;

  Backend* backend_;
  PagePool* pool_;
  int capacity_;
  KvOptions options_;
  bool chooses_pages_ = false;
  bool records_mass_ = false;
  int length_ = 0;
  int quantized_ = 0;
  std::vector<PageRef> pages_;
  mutable Buffer planes_;  // the same pages' PagePlanes, as the backend reads them
  Buffer ring_;
  std::vector<FullKv> rings_;  // [num_layers], in ring_
  std::vector<GatheredKv> gathered_;
  PageSelector selector_;
  int list_changes_ = 0;  // but for those when the first mass is recorded
};

}  // namespace quantspec
