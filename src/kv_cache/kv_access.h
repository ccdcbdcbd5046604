// What a pass sees of the KV cache in one layer, beyond the ring, which every pass sees: data, not
// code (section 4 of docs/design.md). Targets see all pages at 8 bits; drafts may see less.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_cache/kv_budget.h"
#include "quant/quant.h"

namespace quantspec {

enum class KvTokens : std::uint8_t {
  kAll,   // every page
  kNone,  // nothing but the ring
  // Pages, chosen per kv head; the first page (attention's sink) is always among them.
  kByMass,   // those to which the last target pass gave the most attention
  kByBound,  // those whose keys could match the query best (arXiv:2406.10774)
  // Tokens in full precision, gathered into a cache of their own: the rivals.
  kStreaming,  // the first 16 and a window of the latest (arXiv:2309.17453)
  kSnap,       // per kv head, by the attention of the prompt's last 32 queries (arXiv:2404.14469)
  kRetrieval,  // per kv head, chunks of 8 by the mean of their keys (arXiv:2404.11912)
};

struct KvAccess {
  KvRead read = KvRead::kUpper;  // of pages; kFull: of the layer's copy in full precision
  KvTokens tokens = KvTokens::kAll;
  KvBudget budget = {};      // where `tokens` is a choice
  bool record_mass = false;  // target passes: what kByMass chooses from

  static constexpr KvAccess target() {
    return {KvRead::kBoth, KvTokens::kAll, {}, /*record_mass=*/true};
  }
  bool chooses_pages() const { return tokens == KvTokens::kByMass || tokens == KvTokens::kByBound; }
  bool gathers() const { return tokens >= KvTokens::kStreaming; }
  // So many of a sequence's pages are read.
  int pages_read(int num_pages, int page_size) const {
    if (chooses_pages()) return budget.pages(num_pages, page_size);
    return tokens == KvTokens::kAll ? num_pages : 0;
  }
  bool operator==(const KvAccess&) const = default;
};

// KvStore::kFull keeps every position in full precision and no pages: the plain cache that others
// have, as a baseline. Target and draft then read the same.
enum class KvStore : std::uint8_t { kHierarchical, kFull };

// What a cache must be able to give, known when it is made.
struct KvOptions {
  KvStore store = KvStore::kHierarchical;
  std::vector<int> full_layers = {};    // layers that also keep every position in full precision
  std::vector<KvAccess> accesses = {};  // drafts' accesses that choose pages or gather tokens
  // Tokens of a prompt that read each other in full precision; a multiple of the page size. 0: what
  // suits the backend (Backend::prefill_chunk()).
  int chunk = 0;
};

}  // namespace quantspec
