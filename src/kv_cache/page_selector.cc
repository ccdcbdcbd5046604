#include "kv_cache/page_selector.h"

#include "base/error.h"

namespace quantspec {

PageSelector::PageSelector(Backend& backend, const KvShape& shape)
    : backend_(&backend), num_kv_heads_(shape.num_kv_heads), layers_(shape.num_layers) {}

PageSelector::PageSelector(const PageSelector& other)
    : backend_(other.backend_),
      num_kv_heads_(other.num_kv_heads_),
      entries_(other.entries_),
      layers_(other.layers_),
      mass_(backend_->allocate(other.mass_.size())),
      lists_(backend_->allocate(other.lists_.size())) {
  backend_->copy(mass_.data(), other.mass_.data(), mass_.size());
  for (Layer& layer : layers_) layer.list_count = 0;
}

void PageSelector::reserve(int max_pages) {
  entries_ = static_cast<std::size_t>(num_kv_heads_) * max_pages;
  mass_ = backend_->allocate(layers_.size() * entries_ * sizeof(float));
  lists_ = backend_->allocate(layers_.size() * entries_ * sizeof(int));
  clear();
}

void PageSelector::clear() {
  for (Layer& layer : layers_) layer.mass_pages = layer.list_count = 0;
}

float* PageSelector::record_mass(int layer, int num_pages) {
  layers_[layer].mass_pages = num_pages;
  layers_[layer].list_count = 0;
  return mass(layer);
}

std::span<const int> PageSelector::by_mass(int layer, int num_pages, int count) {
  const Layer& at = layers_[layer];
  if (count >= num_pages || at.mass_pages == 0) return {};
  if (at.list_count == count && at.list_pages == num_pages) return current(layer);
  return select(layer, mass(layer), at.mass_pages, num_pages, count);
}

std::span<const int> PageSelector::by_scores(int layer, const float* scores, int num_pages,
                                             int count) {
  if (count >= num_pages) return {};
  const std::span<const int> lists = select(layer, scores, num_pages, num_pages, count);
  layers_[layer].list_count = 0;  // not by mass
  return lists;
}

std::span<const int> PageSelector::current(int layer) {
  return {lists(layer), static_cast<std::size_t>(num_kv_heads_) * layers_[layer].list_count};
}

std::span<const int> PageSelector::select(int layer, const float* scores, int num_scored,
                                          int num_pages, int count) {
  check(static_cast<std::size_t>(num_kv_heads_) * num_pages <= entries_,
        "room was reserved for the pages that are chosen from");
  layers_[layer].list_count = count;
  layers_[layer].list_pages = num_pages;
  backend_->select_pages({scores, num_kv_heads_, num_scored, num_pages, count, lists(layer)});
  return current(layer);
}

}  // namespace quantspec
