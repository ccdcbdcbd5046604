// K and V between the backend's order and the canonical one (quant.h), in host memory: for what
// looks into a cache, and for tests.
#pragma once

#include <cstddef>

#include "backend/params/forward.h"

namespace quantspec {

class KvBorders {
 public:
  virtual ~KvBorders() = default;

  // Reads / writes K and V of a kv head at `count` positions from `first` on, as fp32: [count,
  // head_dim] each. What is written is rounded to the backend's full precision; reading leaves
  // values out where `values` is null. REQUIRES: count <= capacity
  virtual void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                            float* keys, float* values) const = 0;
  virtual void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                             const float* keys, const float* values) = 0;
  // One unit of a page, from / to canonical order.
  virtual void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page,
                           std::byte* upper, std::byte* lower) const = 0;
  virtual void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                           const std::byte* lower, PagePlanes page) = 0;
};

}  // namespace quantspec
