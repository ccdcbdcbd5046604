#include "kv_cache/page_selector.h"

#include "base/error.h"

namespace quantspec {

namespace {

// Bytes.
struct Sizes {
  Sizes(int num_layers, int num_kv_heads, int max_pages)
      : bounds(std::size_t{sizeof(float)} * num_kv_heads * max_pages),
        mass(num_layers * bounds),
        lists(num_layers * (bounds / sizeof(float)) * sizeof(int)) {}
  std::size_t bounds, mass, lists;
};

}  // namespace

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
  const Sizes sizes(num_layers_, num_kv_heads_, max_pages);
  max_pages_ = max_pages;
  mass_ = memory_->allocate(sizes.mass);
  bounds_ = memory_->allocate(sizes.bounds);
  lists_ = memory_->allocate(sizes.lists);
  clear();
}

std::size_t PageSelector::bytes_for(const KvShape& shape, int max_pages) {
  const Sizes sizes(shape.num_layers, shape.num_kv_heads, max_pages);
  return sizes.mass + sizes.bounds + sizes.lists;
}

std::span<int> PageSelector::lists(int layer, int num_pages, int count) const {
  check(num_pages <= max_pages_, "room was reserved for the pages");
  if (count >= num_pages) return {};
  return {lists_.as<int>() + layer * entries(), static_cast<std::size_t>(num_kv_heads_) * count};
}

}  // namespace quantspec
