#include "kv_cache/page_selector.h"

#include "base/error.h"

namespace quantspec {

PageSelector::PageSelector(DeviceMemory& memory, const KvShape& shape)
    : memory_(&memory), num_layers_(shape.num_layers), num_kv_heads_(shape.num_kv_heads) {}

PageSelector::PageSelector(const PageSelector& other)
    : memory_(other.memory_),
      num_layers_(other.num_layers_),
      num_kv_heads_(other.num_kv_heads_),
      max_pages_(other.max_pages_),
      has_mass_(other.has_mass_),
      mass_(memory_->allocate(other.mass_.size())),
      bounds_(memory_->allocate(other.bounds_.size())),
      lists_(memory_->allocate(other.lists_.size())) {
  memory_->copy(mass_.data(), other.mass_.data(), mass_.size());
}

void PageSelector::reserve(int max_pages) {
  max_pages_ = max_pages;
  mass_ = memory_->allocate(num_layers_ * entries() * sizeof(float));
  bounds_ = memory_->allocate(entries() * sizeof(float));
  lists_ = memory_->allocate(num_layers_ * entries() * sizeof(int));
  clear();
}

std::size_t PageSelector::bytes_for(const KvShape& shape, int max_pages) {
  const std::size_t entries = static_cast<std::size_t>(shape.num_kv_heads) * max_pages;
  const std::size_t masses = shape.num_layers * entries * sizeof(float);
  const std::size_t bounds = entries * sizeof(float),
                    lists = shape.num_layers * entries * sizeof(int);
  return masses + bounds + lists;
}

std::span<int> PageSelector::lists(int layer, int num_pages, int count) const {
  check(num_pages <= max_pages_, "room was reserved for the pages");
  if (count >= num_pages) return {};
  return {lists_.as<int>() + layer * entries(), static_cast<std::size_t>(num_kv_heads_) * count};
}

}  // namespace quantspec
