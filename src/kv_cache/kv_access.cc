#include "kv_cache/kv_access.h"

#include <algorithm>

namespace quantspec {

int KvAccess::pages_read(int num_pages, int page_size) const {
  if (chooses_pages()) return budget.pages(num_pages, page_size);
  return tokens == KvTokens::kAll ? num_pages : 0;
}

int KvAccess::tokens_gathered(int page_size) const {
  const int given = budget.tokens(0);
  switch (tokens) {
    case KvTokens::kStreaming:
      return kSinks + (std::max(0, given - kSinks - page_size) + 15) / 16 * 16;
    case KvTokens::kSnap:
      return std::max(0, given - kSnapQueries);
    case KvTokens::kRetrieval:
      return given / kRetrievalSegment * kRetrievalSegment;
    default:
      return 0;
  }
}

int KvAccess::tokens_read(int paged, int page_size) const {
  if (gathers()) return std::min(paged, tokens_gathered(page_size));
  return page_size * pages_read(paged / page_size, page_size);
}

}  // namespace quantspec
