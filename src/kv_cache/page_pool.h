// Memory for quantized pages. A page is handed out as a counted reference and goes back to the pool
// when the last one is dropped, so that sequences may share it. Memory comes from the backend in
// slabs that grow with use. Not thread-safe. The pool outlives its pages.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"

namespace quantspec {

using PageRef = std::shared_ptr<const PagePlanes>;

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
  void add_slab(std::size_t pages);

  Backend& backend_;
  KvShape shape_;
  std::vector<Buffer> slabs_;
  std::vector<PagePlanes> free_;
  std::size_t total_ = 0;
};

}  // namespace quantspec
