#include "kv_cache/page_selector.h"

#include "base/error.h"

namespace quantspec {

PageSelector::PageSelector(Backend& backend, const KvShape& shape)
    : backend_(&backend), num_layers_(shape.num_layers), num_kv_heads_(shape.num_kv_heads) {}

PageSelector::PageSelector(const PageSelector& other)
    : backend_(other.backend_),
      num_layers_(other.num_layers_),
      num_kv_heads_(other.num_kv_heads_),
      max_pages_(other.max_pages_),
      has_mass_(other.has_mass_),
      num_pages_(backend_->allocate(other.num_pages_.size())),
      mass_(backend_->allocate(other.mass_.size())),
      bounds_(backend_->allocate(other.bounds_.size())),
      lists_(backend_->allocate(other.lists_.size())) {
  backend_->copy(num_pages_.data(), other.num_pages_.data(), num_pages_.size());
  backend_->copy(mass_.data(), other.mass_.data(), mass_.size());
}

void PageSelector::reserve(int max_pages) {
  max_pages_ = max_pages;
  num_pages_ = backend_->allocate(sizeof(int));
  mass_ = backend_->allocate(num_layers_ * entries() * sizeof(float));
  bounds_ = backend_->allocate(entries() * sizeof(float));
  lists_ = backend_->allocate(num_layers_ * entries() * sizeof(int));
  clear();
}

void PageSelector::set_num_pages(int num_pages) {
  check(num_pages <= max_pages_, "room was reserved for the pages");
  backend_->upload(num_pages_.data(), &num_pages, sizeof(num_pages));
}

std::span<const int> PageSelector::lists(int layer, int num_pages, int count) const {
  if (count >= num_pages) return {};
  return {list(layer), static_cast<std::size_t>(num_kv_heads_) * count};
}

void PageSelector::select_by_bound(PageBoundsParams bounds, int count) const {
  bounds.num_pages = num_pages_.as<int>();
  bounds.out = {bounds_.as<float>(), max_pages_};
  backend_->page_bounds(bounds);
  select(bounds.layer, bounds.out, count);
}

void PageSelector::select(int layer, PageScores scores, int count) const {
  backend_->select_pages({scores, num_kv_heads_, num_pages_.as<int>(), count, list(layer)});
}

}  // namespace quantspec
