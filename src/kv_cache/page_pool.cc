#include "kv_cache/page_pool.h"

#include <algorithm>

namespace quantspec {

namespace {

constexpr std::size_t kSlabBytes = std::size_t{32} << 20;

}  // namespace

PagePool::PagePool(Backend& backend, const KvShape& shape) : backend_(backend), shape_(shape) {}

void PagePool::add_slab(std::size_t pages) {
  // Upper planes first, all of them, so that a draft streams through memory that it uses whole.
  const std::size_t upper_bytes = shape_.units() * shape_.upper_unit_bytes();
  const std::size_t lower_bytes = shape_.units() * shape_.lower_unit_bytes();
  Buffer slab = backend_.allocate(pages * (upper_bytes + lower_bytes));
  std::byte* upper = slab.data();
  std::byte* lower = upper + pages * upper_bytes;
  free_.reserve(total_ + pages);  // a page that comes back later needs no allocation
  slabs_.push_back(std::move(slab));
  total_ += pages;
  for (std::size_t i = pages; i-- > 0;) {  // handed out from the back: in order of address
    free_.push_back({upper + i * upper_bytes, lower + i * lower_bytes});
  }
}

void PagePool::reserve(std::size_t count) {
  if (count > free_.size()) add_slab(count - free_.size());
}

PageRef PagePool::allocate() {
  if (free_.empty()) {
    add_slab(
        std::clamp<std::size_t>(total_, 1, std::max<std::size_t>(1, kSlabBytes / page_bytes())));
  }
  auto give_back = [this](const PagePlanes* page) {
    free_.push_back(*page);
    delete page;
  };
  auto page = std::make_unique<PagePlanes>(free_.back());
  free_.pop_back();
  return {page.release(), give_back};  // gives it back itself if it fails
}

}  // namespace quantspec
