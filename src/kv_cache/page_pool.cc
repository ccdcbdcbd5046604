#include "kv_cache/page_pool.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr std::size_t kSlabBytes = std::size_t{32} << 20;

}  // namespace

PageRef::PageRef(const PageRef& other) : pool_(other.pool_), page_(other.page_) {
  if (pool_ != nullptr) ++pool_->pages_[page_].uses;
}

PageRef::~PageRef() {
  if (pool_ != nullptr && --pool_->pages_[page_].uses == 0) pool_->free_.push_back(page_);
}

PagePlanes PageRef::planes() const { return pool_->pages_[page_].planes; }

PagePool::PagePool(DeviceMemory& memory, const KvShape& shape, std::size_t max_pages)
    : memory_(memory),
      shape_(shape),
      capacity_(max_pages == 0 ? std::numeric_limits<std::size_t>::max() : max_pages) {}

void PagePool::add_slab(std::size_t pages) {
  // Upper planes first, all of them, so that a draft streams through memory that it uses whole.
  const std::size_t upper_bytes = shape_.units() * shape_.upper_unit_bytes();
  const std::size_t lower_bytes = shape_.units() * shape_.lower_unit_bytes();
  Buffer slab = memory_.allocate(pages * page_bytes());
  std::byte* upper = slab.data();
  std::byte* lower = upper + pages * upper_bytes;
  const std::size_t first = pages_.size();
  free_.reserve(first + pages);  // a page that comes back later needs no allocation
  pages_.reserve(first + pages);
  slabs_.push_back(std::move(slab));
  for (std::size_t i = 0; i < pages; ++i) {
    pages_.push_back({{upper + i * upper_bytes, lower + i * lower_bytes}});
    free_.push_back(static_cast<int>(first + pages - 1 - i));  // the first is handed out first
  }
}

void PagePool::fail_full(std::size_t wanted) const {
  fail(
      ErrorKind::kOutOfMemory,
      "the KV cache: {} more pages of {} tokens are needed, and {} of its {} ({:.0f} MB) are free; "
      "fewer or shorter sequences at a time work",
      wanted, shape_.page_size, free(), capacity_, 1e-6 * capacity_ * page_bytes());
}

void PagePool::reserve(std::size_t count) {
  if (count > free()) fail_full(count);
  if (count > free_.size()) add_slab(count - free_.size());
}

std::optional<PageRef> PagePool::try_allocate() {
  if (free() == 0) return std::nullopt;
  if (free_.empty()) {
    const std::size_t slab = std::max<std::size_t>(1, kSlabBytes / page_bytes());
    add_slab(std::min(std::clamp<std::size_t>(pages_.size(), 1, slab), free()));
  }
  const int page = free_.back();
  free_.pop_back();
  pages_[page].uses = 1;
  return PageRef(*this, page);
}

PageRef PagePool::allocate() {
  std::optional<PageRef> page = try_allocate();
  if (!page) fail_full(1);
  return *std::move(page);
}

}  // namespace quantspec
