#include "kv_cache/host_pages.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace quantspec {

HostPages::Copy::~Copy() {
  if (owner_ != nullptr) owner_->free_.insert(owner_->free_.end(), slots_.begin(), slots_.end());
}

HostPages::HostPages(DeviceMemory& backend, const KvShape& shape, std::size_t bytes)
    : backend_(backend),
      upper_bytes_(shape.units() * shape.upper_unit_bytes()),
      slot_bytes_(PagePool::page_bytes(shape)),
      capacity_(bytes / slot_bytes_),
      memory_(backend.allocate_on_host(capacity_ * slot_bytes_)),
      free_(capacity_) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // the first is taken first
}

HostPages::Copy HostPages::take(std::size_t slots) {
  check(slots <= free_.size(), "what is saved has slots");
  Copy copy;
  copy.owner_ = this;
  copy.slots_.assign(free_.end() - static_cast<std::ptrdiff_t>(slots), free_.end());
  free_.resize(free_.size() - slots);
  return copy;
}

HostPages::Copy HostPages::save(std::span<const PageRef> pages) {
  Copy copy = take(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const PagePlanes planes = pages[i].planes();
    std::byte* const to = at(copy.slots_[i]);
    backend_.copy(to, planes.upper, upper_bytes_);
    backend_.copy(to + upper_bytes_, planes.lower, slot_bytes_ - upper_bytes_);
  }
  return copy;
}

HostPages::Copy HostPages::save(std::span<const std::byte> memory) {
  Copy copy = take(slots_for(memory.size()));
  for (const int slot : copy.slots_) {
    const auto part = memory.first(std::min(memory.size(), slot_bytes_));
    backend_.copy(at(slot), part.data(), part.size());
    memory = memory.subspan(part.size());
  }
  return copy;
}

void HostPages::restore(const Copy& copy, std::span<const PageRef> pages) {
  check(pages.size() == copy.slots(), "every page that was saved has a page to go to");
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const PagePlanes planes = pages[i].planes();
    const std::byte* const from = at(copy.slots_[i]);
    backend_.copy(planes.upper, from, upper_bytes_);
    backend_.copy(planes.lower, from + upper_bytes_, slot_bytes_ - upper_bytes_);
  }
}

void HostPages::restore(const Copy& copy, std::span<std::byte> memory) {
  check(slots_for(memory.size()) == copy.slots(), "what was saved goes to memory of its size");
  for (const int slot : copy.slots_) {
    const auto part = memory.first(std::min(memory.size(), slot_bytes_));
    backend_.copy(part.data(), at(slot), part.size());
    memory = memory.subspan(part.size());
  }
}

}  // namespace quantspec
