// Which pages a sparse draft reads: per layer and kv head, those with the greatest scores (section
// 4 of docs/design.md). Scores are the attention mass that the last target pass gave each page, or
// bounds on what a query's scores could be. Scores, lists and the number of pages lie in the
// backend's memory, where they stay as pages are added. Private to kv_cache/. Not thread-safe.
// Allocates in reserve() only.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"

namespace quantspec {

class PageSelector {
 public:
  PageSelector(Backend& backend, const KvShape& shape);
  // Of the same room, and with what was recorded.
  PageSelector(const PageSelector& other);
  PageSelector(PageSelector&&) = default;
  PageSelector& operator=(PageSelector&&) = default;

  // The most pages that there will be. Before anything else; what was recorded is forgotten.
  void reserve(int max_pages);
  // There are so many pages from now on.
  void set_num_pages(int num_pages);

  // Where a target pass writes the mass of each page.
  PageScores record_mass(int layer);
  bool has_mass() const;  // of any layer
  // The lists of `count` of the pages, ascending: [num_kv_heads, count], valid until the next call
  // for the layer. Empty: all pages, since there are no more, or since no mass has been recorded. A
  // page that has come after the last target pass is always among them.
  std::span<const int> by_mass(int layer, int num_pages, int count);
  // The same by bounds, whose num_pages and out are known here.
  std::span<const int> by_bound(PageBoundsParams bounds, int count);
  // Forgets what was recorded.
  void clear();

 private:
  struct Layer {
    bool has_mass = false;
    int list_count = 0;  // pages of each list by mass; 0: the lists are out of date
  };
  std::size_t entries() const { return static_cast<std::size_t>(num_kv_heads_) * max_pages_; }
  PageScores mass(int layer) { return {mass_.as<float>() + layer * entries(), max_pages_}; }
  std::span<const int> select(int layer, PageScores scores, int count);
  std::span<int> lists(int layer, int count);

  Backend* backend_;
  int num_kv_heads_;
  int max_pages_ = 0;
  std::vector<Layer> layers_;
  Buffer num_pages_;  // int
  Buffer mass_;       // [num_layers] PageScores
  Buffer bounds_;     // PageScores of the layer at hand
  Buffer lists_;      // [num_layers, entries()]: [num_kv_heads, count] in use
};

}  // namespace quantspec
