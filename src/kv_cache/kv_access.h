// What a pass sees of the KV cache in one layer, beyond the ring, which every pass sees: data, not
// code (section 4 of docs/design.md). Targets see all pages at 8 bits; drafts may see less.
#pragma once

#include <cstdint>
#include <memory>
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
  // Tokens in full precision, gathered into a cache of their own: the rivals (GatheredTokens).
  kStreaming,  // the first 16 and a window of the latest (arXiv:2309.17453)
  kSnap,       // per kv head, by the attention of the prompt's last 32 queries (arXiv:2404.14469)
  kRetrieval,  // per kv head, segments of 8 by the mean of their keys (arXiv:2404.11912)
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
  // What a pass reads beside the ring. The one place that says so: for caches, for bytes and for
  // predictions. So many of a sequence's pages:
  int pages_read(int num_pages, int page_size) const;
  // So many tokens are gathered, once there are as many. In kStreaming the ring, of more than a
  // page, counts towards the budget; in kSnap 32 of the latest do, and what leaves the ring after
  // the prompt comes on top.
  int tokens_gathered(int page_size) const;
  // So many of the first `paged` tokens, which the ring does not hold.
  int tokens_read(int paged, int page_size) const;
  static constexpr int kSinks = 16, kSnapQueries = 32, kRetrievalSegment = 8;

  // The same tokens, whatever of them.
  bool reads_alike(const KvAccess& other) const {
    return tokens == other.tokens && budget == other.budget;
  }
  bool operator==(const KvAccess&) const = default;
};

// KvStore::kFull keeps every position in full precision and no pages: the plain cache that others
// have, as a baseline. Target and draft then read the same.
enum class KvStore : std::uint8_t { kHierarchical, kFull };

class GatheredTokens;

// What a cache must be able to give, known when it is made.
struct KvOptions {
  KvStore store = KvStore::kHierarchical;
  std::vector<int> full_layers = {};    // layers that also keep every position in full precision
  std::vector<KvAccess> accesses = {};  // drafts' accesses that choose pages or gather tokens
  // Gathers what those want that gather; each cache has a fork of it (with_rivals).
  std::shared_ptr<const GatheredTokens> gathered = {};
  // Tokens of a prompt that read each other in full precision; a multiple of the page size. 0: what
  // suits the backend (Backend::prefill_chunk()).
  int chunk = 0;
};

}  // namespace quantspec
