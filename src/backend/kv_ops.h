// What keeps a cache: pages are made from full precision, which is copied. What ops take is in
// params/kv.h.
#pragma once

#include <span>

#include "backend/memory.h"
#include "backend/params/forward.h"

namespace quantspec {

class KvOps : public virtual DeviceMemory {
 public:
  // Throws kUnsupportedModel, naming what works, where ops have no such heads or pages.
  virtual void require_supported(const KvShape& shape) const = 0;
  // Tokens of a prompt that read each other in full precision (section 4): a multiple of all page
  // sizes.
  virtual int prefill_chunk() const = 0;
  // Bytes of one layer's FullKv.
  virtual std::size_t full_kv_bytes(const KvShape& shape, int capacity) const = 0;
  // Of which equal strips have the kv heads side by side: keys and values apart, or all of it.
  virtual int full_kv_strips() const = 0;
  // Which turn a page is of, where ranks share contexts (params/context.h).
  virtual int context_turn(const KvShape& shape, int page) const = 0;

  // Quantizes positions [first_position, first_position + pages.size() * page_size) of sources[i]
  // into layer first_layer + i of `pages`.
  virtual void quantize_pages(const KvShape& shape, int first_layer,
                              std::span<const FullKv> sources, int first_position,
                              std::span<const PagePlanes> pages) = 0;
  // Copies positions [first, first + count).
  virtual void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                            int count) = 0;
  // Copies, for every kv head, its `positions` ([num_kv_heads, n], host) of `source` to the slots
  // [first_slot, first_slot + n) of `target`.
  virtual void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                              std::span<const int> positions, int first_slot) = 0;
};

}  // namespace quantspec
