// Memory for quantized pages, with a budget. A page is handed out as a counted reference and goes
// back to the pool when the last one is dropped, so that sequences and the prefix tree may share
// it. Memory comes from the backend in slabs that double with use, up to 32 MB; between slabs
// nothing is allocated, and nothing at all once reserve() took the whole budget.
//
// Not thread-safe: one thread allocates, copies and drops the pages of a pool. The pool outlives
// its pages.
#pragma once

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "backend/memory.h"
#include "backend/params/kv.h"
#include "quant/quant.h"

namespace quantspec {

class PagePool;

class PageRef {
 public:
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), page_(other.page_) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(page_, other.page_);
    return *this;
  }
  ~PageRef();

  PagePlanes planes() const;

 private:
  friend class PagePool;
  PageRef(PagePool& pool, int page) : pool_(&pool), page_(page) {}
  PagePool* pool_;  // null: moved from
  int page_;
};

class PagePool {
 public:
  // max_pages: the most pages in use at once; 0: as many as there is memory for.
  PagePool(DeviceMemory& memory, const KvShape& shape, std::size_t max_pages = 0);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvShape& shape() const { return shape_; }
  std::size_t page_bytes() const { return shape_.page_bytes(); }

  // A page, or none where the budget is spent; allocate() throws kOutOfMemory then. Both throw it
  // where the backend has no memory for another slab.
  std::optional<PageRef> try_allocate();
  PageRef allocate();
  // Takes the memory of `count` more pages now, so that handing them out allocates nothing. Throws
  // kOutOfMemory where they exceed the budget or the backend's memory.
  void reserve(std::size_t count);

  // Pages: those handed out, those that may still be, and the budget (of a pool without one, the
  // greatest number there is). reserved(): those whose memory is taken, in use or not.
  std::size_t used() const { return pages_.size() - free_.size(); }
  std::size_t free() const { return capacity_ - used(); }
  std::size_t capacity() const { return capacity_; }
  std::size_t reserved() const { return pages_.size(); }

 private:
  friend class PageRef;
  struct Page {
    PagePlanes planes;
    int uses = 0;
  };
  void add_slab(std::size_t pages);
  [[noreturn]] void fail_full(std::size_t wanted) const;

  DeviceMemory& memory_;
  KvShape shape_;
  std::size_t capacity_;
  std::vector<Buffer> slabs_;
  std::vector<Page> pages_;
  std::vector<int> free_;  // of pages_
};

}  // namespace quantspec
