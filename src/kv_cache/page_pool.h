// Memory for quantized pages. A page is handed out as a counted reference and goes back to the pool
// when the last one is dropped, so that sequences may share it. Memory comes from the backend in
// slabs that double with use, up to 32 MB; between slabs nothing is allocated. Not thread-safe. The
// pool outlives its pages.
#pragma once

#include <utility>
#include <vector>

#include "backend/backend.h"

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
  PagePool(Backend& backend, const KvShape& shape);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvShape& shape() const { return shape_; }
  std::size_t page_bytes() const { return page_bytes(shape_); }
  static std::size_t page_bytes(const KvShape& shape) {
    return shape.units() * (shape.upper_unit_bytes() + shape.lower_unit_bytes());
  }

  PageRef allocate();
  // Makes sure that `count` pages can be handed out without another slab.
  void reserve(std::size_t count);

 private:
  friend class PageRef;
  struct Page {
    PagePlanes planes;
    int uses = 0;
  };
  void add_slab(std::size_t pages);

  Backend& backend_;
  KvShape shape_;
  std::vector<Buffer> slabs_;
  std::vector<Page> pages_;
  std::vector<int> free_;  // of pages_
};

}  // namespace quantspec
