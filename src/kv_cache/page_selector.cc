#include "kv_cache/page_selector.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quantspec {

PageSelector::PageSelector(Backend& backend, const KvShape& shape)
    : backend_(&backend), num_kv_heads_(shape.num_kv_heads), layers_(shape.num_layers) {}

PageSelector::PageSelector(const PageSelector& other)
    : backend_(other.backend_),
      num_kv_heads_(other.num_kv_heads_),
      max_pages_(other.max_pages_),
      layers_(other.layers_),
      num_pages_(backend_->allocate(other.num_pages_.size())),
      mass_(backend_->allocate(other.mass_.size())),
      bounds_(backend_->allocate(other.bounds_.size())),
      lists_(backend_->allocate(other.lists_.size())) {
  backend_->copy(num_pages_.data(), other.num_pages_.data(), num_pages_.size());
  backend_->copy(mass_.data(), other.mass_.data(), mass_.size());
  for (Layer& layer : layers_) layer.list_count = 0;
}

void PageSelector::reserve(int max_pages) {
  max_pages_ = max_pages;
  num_pages_ = backend_->allocate(sizeof(int));
  mass_ = backend_->allocate(layers_.size() * entries() * sizeof(float));
  bounds_ = backend_->allocate(entries() * sizeof(float));
  lists_ = backend_->allocate(layers_.size() * entries() * sizeof(int));
  clear();
}

void PageSelector::set_num_pages(int num_pages) {
  check(num_pages <= max_pages_, "room was reserved for the pages");
  backend_->upload(num_pages_.data(), &num_pages, sizeof(num_pages));
  for (Layer& layer : layers_) layer.list_count = 0;
}

void PageSelector::clear() {
  for (Layer& layer : layers_) layer = {};
}

PageScores PageSelector::record_mass(int layer) {
  layers_[layer] = {.has_mass = true};
  return mass(layer);
}

bool PageSelector::has_mass() const { return std::ranges::any_of(layers_, &Layer::has_mass); }

std::span<const int> PageSelector::by_mass(int layer, int num_pages, int count) {
  Layer& at = layers_[layer];
  if (count >= num_pages || !at.has_mass) return {};
  if (std::exchange(at.list_count, count) == count) return lists(layer, count);
  return select(layer, mass(layer), count);
}

std::span<const int> PageSelector::by_bound(PageBoundsParams bounds, int count) {
  if (count >= std::ssize(bounds.pages)) return {};
  bounds.num_pages = num_pages_.as<int>();
  bounds.out = {bounds_.as<float>(), max_pages_};
  backend_->page_bounds(bounds);
  layers_[bounds.layer].list_count = 0;  // not by mass
  return select(bounds.layer, bounds.out, count);
}

std::span<const int> PageSelector::select(int layer, PageScores scores, int count) {
  const std::span<int> all = lists(layer, count);
  backend_->select_pages({scores, num_kv_heads_, num_pages_.as<int>(), count, all.data()});
  return all;
}

std::span<int> PageSelector::lists(int layer, int count) {
  return {lists_.as<int>() + layer * entries(), static_cast<std::size_t>(num_kv_heads_) * count};
}

}  // namespace quantspec
