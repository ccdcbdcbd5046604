#include "kv_cache/host_pages.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace quantspec {

HostPages::Copy::~Copy() {
  if (owner_ != nullptr) owner_->free_.insert(owner_->free_.end(), slots_.begin(), slots_.end());
}

HostPages::HostPages(DeviceMemory& backend, const KvShape& shape, std::size_t bytes)
    : backend_(backend),
      upper_bytes_(shape.units() * shape.upper_unit_bytes()),
      slot_bytes_(shape.page_bytes()),
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

void HostPages::for_parts(const Copy& copy, std::size_t offset, std::size_t bytes,
                          const auto& each) const {
  check(offset + bytes <= copy.slots_.size() * slot_bytes_,
        "a copy has as much memory as its slots");
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t slot = (offset + done) / slot_bytes_, in_slot = (offset + done) % slot_bytes_;
    const std::size_t part = std::min(bytes - done, slot_bytes_ - in_slot);
    each(at(copy.slots_[slot]) + in_slot, done, part);
    done += part;
  }
}

void HostPages::write(const Copy& copy, std::size_t offset, std::span<const std::byte> memory) {
  for_parts(copy, offset, memory.size(), [&](std::byte* to, std::size_t from, std::size_t bytes) {
    backend_.copy(to, memory.data() + from, bytes);
  });
}

void HostPages::read(const Copy& copy, std::size_t offset, std::span<std::byte> memory) const {
  for_parts(copy, offset, memory.size(), [&](std::byte* from, std::size_t to, std::size_t bytes) {
    backend_.copy(memory.data() + to, from, bytes);
  });
}

void HostPages::download(const Copy& copy, std::span<std::byte> to) const {
  backend_.synchronize();
  for_parts(copy, 0, to.size(), [&](const std::byte* slot, std::size_t at, std::size_t bytes) {
    std::memcpy(to.data() + at, slot, bytes);
  });
}

void HostPages::upload(const Copy& copy, std::span<const std::byte> from) {
  backend_.synchronize();
  for_parts(copy, 0, from.size(), [&](std::byte* slot, std::size_t at, std::size_t bytes) {
    std::memcpy(slot, from.data() + at, bytes);
  });
}

HostPages::Copy HostPages::save(std::span<const std::byte> memory) {
  Copy copy = take(slots_for(memory.size()));
  write(copy, 0, memory);
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
  read(copy, 0, memory);
}

}  // namespace quantspec
