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
      mass_(backend_->allocate(other.mass_.size())),
      bounds_(backend_->allocate(other.bounds_.size())),
      lists_(backend_->allocate(other.lists_.size())) {
  backend_->copy(mass_.data(), other.mass_.data(), mass_.size());
}

void PageSelector::reserve(int max_pages) {
  max_pages_ = max_pages;
  mass_ = backend_->allocate(num_layers_ * entries() * sizeof(float));
  bounds_ = backend_->allocate(entries() * sizeof(float));
  lists_ = backend_->allocate(num_layers_ * entries() * sizeof(int));
  clear();
}

std::span<int> PageSelector::lists(int layer, int num_pages, int count) const {
  check(num_pages <= max_pages_, "room was reserved for the pages");
  if (count >= num_pages) return {};
  return {lists_.as<int>() + layer * entries(), static_cast<std::size_t>(num_kv_heads_) * count};
}

}  // namespace quantspec
