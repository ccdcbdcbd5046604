// Memory of the host for what pages hold while the backend's memory has no room for it: what a
// preempted sequence comes back with, and chunks of the prefix tree that nobody uses. Bytes are
// copied as they are, so what comes back is what went, bit for bit. All memory is taken at the
// start, in slots of a page; saving and restoring allocate nothing of it and wait for nothing
// (DeviceMemory::copy).
//
// Not thread-safe: the thread of the pool. It outlives its copies.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kv_cache/page_pool.h"

namespace quantspec {

class HostPages {
 public:
  // As many slots as `bytes` have room for. Throws kOutOfMemory where the host has not so much.
  HostPages(DeviceMemory& backend, const KvShape& shape, std::size_t bytes);
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  // What was saved. Its slots are free again when it is dropped.
  class Copy {
   public:
    Copy() = default;
    Copy(Copy&& other) noexcept { swap(other); }
    Copy& operator=(Copy other) noexcept {
      swap(other);
      return *this;
    }
    ~Copy();
    std::size_t slots() const { return slots_.size(); }

   private:
    friend class HostPages;
    void swap(Copy& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(slots_, other.slots_);
    }
    HostPages* owner_ = nullptr;
    std::vector<int> slots_;  // in the order of what was saved
  };

  // Slots: all, those in use and those that are not, and how many so many bytes take.
  std::size_t capacity() const { return capacity_; }
  std::size_t used() const { return capacity_ - free_.size(); }
  std::size_t free() const { return free_.size(); }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t slots_for(std::size_t bytes) const { return (bytes + slot_bytes_ - 1) / slot_bytes_; }

  // Slots for what write() brings.
  Copy take(std::size_t slots);
  // To and from the bytes of a copy from `offset` on, as if its slots were one memory.
  // REQUIRES: they are within them.
  void write(const Copy& copy, std::size_t offset, std::span<const std::byte> memory);
  void read(const Copy& copy, std::size_t offset, std::span<std::byte> memory) const;
  // The same with memory of the program's own; waits for all that was called.
  void download(const Copy& copy, std::span<std::byte> to) const;
  void upload(const Copy& copy, std::span<const std::byte> from);
  // Pages, one to a slot, and any other memory of the backend's. REQUIRES: so many slots are free.
  Copy save(std::span<const PageRef> pages);
  Copy save(std::span<const std::byte> memory);
  // To pages of the same shape, and memory of the same size. REQUIRES: the copy is of such.
  void restore(const Copy& copy, std::span<const PageRef> pages);
  void restore(const Copy& copy, std::span<std::byte> memory);

 private:
  // Calls each(byte of the slots, offset in the memory, bytes) of every slot that the range
  // touches.
  void for_parts(const Copy& copy, std::size_t offset, std::size_t bytes, const auto& each) const;
  std::byte* at(int slot) const { return memory_.data() + slot * slot_bytes_; }

  DeviceMemory& backend_;
  std::size_t upper_bytes_;  // of a page; the lower plane is after it
  std::size_t slot_bytes_;
  std::size_t capacity_;
  mutable Buffer memory_;
  std::vector<int> free_;
};

}  // namespace quantspec
