// Which pages a sparse draft reads: per layer and kv head, those with the greatest scores (section
// 4 of docs/design.md). Scores are the attention mass that the last target pass gave each page, or
// bounds on what a query's scores could be. Scores and lists lie in the backend's memory. Private
// to kv_cache/. Not thread-safe. Allocates in reserve() only.
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

  // Where a target pass that reads so many pages writes the mass of each: [num_kv_heads,
  // num_pages].
  float* record_mass(int layer, int num_pages);
  // The lists of `count` pages, ascending: [num_kv_heads, count], valid until the next call for the
  // layer. Empty: all pages, since there are no more, or since no mass has been recorded. A page
  // that has come after the last target pass is always among them.
  std::span<const int> by_mass(int layer, int num_pages, int count);
  // The same by scores: [num_kv_heads, num_pages].
  std::span<const int> by_scores(int layer, const float* scores, int num_pages, int count);
  void clear();

 private:
  struct Layer {
    int mass_pages = 0;  // of the mass that is recorded
    int list_count = 0;  // pages of each list; 0: the lists are out of date
    int list_pages = 0;  // of which they were chosen
  };
  float* mass(int layer) { return mass_.as<float>() + layer * entries_; }
  int* lists(int layer) { return lists_.as<int>() + layer * entries_; }
  std::span<const int> select(int layer, const float* scores, int num_scored, int num_pages,
                              int count);
  std::span<const int> current(int layer);

  Backend* backend_;
  int num_kv_heads_;
  std::size_t entries_ = 0;  // of a layer: [num_kv_heads, max_pages]
  std::vector<Layer> layers_;
  Buffer mass_;   // [num_layers, entries_]: [num_kv_heads, mass_pages] in use
  Buffer lists_;  // [num_layers, entries_]: [num_kv_heads, list_count] in use
};

}  // namespace quantspec
