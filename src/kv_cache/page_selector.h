// Which pages a sparse draft reads: per layer and kv head, those with the greatest scores (section
// 4 of docs/design.md). Scores are the attention mass that the last target pass gave each page, or
// bounds on what a query's scores could be. Scores, lists and the number of pages lie in the
// backend's memory, where they stay as pages are added. Private to kv_cache/. Not thread-safe.
// Allocates in reserve() only.
#pragma once

#include <span>
#include <vector>

#include "backend/memory.h"
#include "backend/params/kv.h"
#include "quant/quant.h"

namespace quantspec {

class PageSelector {
 public:
  PageSelector(DeviceMemory& memory, const KvShape& shape);
  // Of the same room, and with what was recorded.
  PageSelector(const PageSelector& other);
  PageSelector(PageSelector&&) = default;
  PageSelector& operator=(PageSelector&&) = default;

  // The most pages that there will be. Before anything else; what was recorded is forgotten.
  void reserve(int max_pages);
  // What that takes of the backend's memory.
  static std::size_t bytes_for(const KvShape& shape, int max_pages);
  // Where a target pass writes the mass of each page; once one has, mass_recorded().
  PageScores mass(int layer) const { return {mass_.as<float>() + layer * entries(), max_pages_}; }
  void mass_recorded() { has_mass_ = true; }
  bool has_mass() const { return has_mass_; }
  // Where bounds on what a query's scores could be go, of the layer at hand.
  PageScores bounds() const { return {bounds_.as<float>(), max_pages_}; }
  // Where the lists of `count` of the pages lie, ascending: [num_kv_heads, count]. Empty: all
  // pages, since there are no more.
  std::span<int> lists(int layer, int num_pages, int count) const;
  // Forgets what was recorded.
  void clear() { has_mass_ = false; }

 private:
  std::size_t entries() const { return static_cast<std::size_t>(num_kv_heads_) * max_pages_; }

  DeviceMemory* memory_;
  int num_layers_;
  int num_kv_heads_;
  int max_pages_ = 0;
  bool has_mass_ = false;
  // NOTE: mutable: what they hold is the backend's, and passes write it.
  mutable Buffer mass_;    // [num_layers] PageScores
  mutable Buffer bounds_;  // PageScores of the layer at hand
  mutable Buffer lists_;   // [num_layers, entries()]: [num_kv_heads, count] in use
};

}  // namespace quantspec
