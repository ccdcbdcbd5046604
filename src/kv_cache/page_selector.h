// Which pages a sparse draft reads: per layer and kv head, those with the greatest scores (section
// 4 of docs/design.md). Scores are the attention mass that the last target pass gave each page, or
// bounds on what a query's scores could be. Private to kv_cache/. Not thread-safe. Allocates in
// reserve() only.
#pragma once

#include <span>
#include <vector>

#include "quant/quant.h"

namespace quantspec {

class PageSelector {
 public:
  explicit PageSelector(const KvShape& shape);
  // The most pages that there will be. Before anything else.
  void reserve(int max_pages);

  // Where a target pass that reads so many pages writes the mass of each: [num_kv_heads,
  // num_pages].
  float* record_mass(int layer, int num_pages);
  // The lists of `count` pages, ascending: [num_kv_heads, count], valid until the next call for the
  // layer. Empty: all pages, since there are no more, or since no mass has been recorded. A page
  // that has come after the last target pass is always among them.
  std::span<const int> by_mass(int layer, int num_pages, int count);
  // The same by scores: [num_kv_heads, num_pages].
  std::span<const int> by_scores(int layer, std::span<const float> scores, int count);
  void clear();

 private:
  struct Layer {
    std::vector<float> mass;  // [num_kv_heads, mass_pages] in use
    int mass_pages = 0;
    std::vector<int> list;  // [num_kv_heads, list_count] in use
    int list_count = 0;     // pages of each list; 0: the lists are out of date
    int list_pages = 0;     // of which they were chosen
  };
  template <typename Score>
  std::span<const int> select(Layer& layer, int num_pages, int count, const Score& score);
  std::span<const int> lists(const Layer& layer) const;

  int num_kv_heads_;
  std::vector<Layer> layers_;
  std::vector<int> order_;
  std::vector<float> scores_;
};

}  // namespace quantspec
