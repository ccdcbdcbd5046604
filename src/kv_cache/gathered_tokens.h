// Tokens in full precision that a draft reads instead of pages: of methods that QuantSpec is
// compared with (src/rivals), whose choice is their own affair. A cache tells them what comes and
// goes, and shows in its views what they gathered. While there are any, it keeps all positions in
// full precision, as the published methods do.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backend/params/kv.h"
#include "kv_cache/kv_access.h"

namespace quantspec {

class GatheredTokens {
 public:
  virtual ~GatheredTokens() = default;
  // Goes on from here by itself, with what these accesses gather.
  virtual std::unique_ptr<GatheredTokens> fork(std::span<const KvAccess> accesses) const = 0;

  // `layers`: K and V of every layer and all positions so far. Positions [0, end) are not in the
  // ring.
  // Rows at a prompt's end whose queries are wanted; 0: none.
  virtual int query_rows() const = 0;
  // Those of a chunk that went through `layer`, or as many as it has:
  // [query_rows(), num_heads, head_dim].
  virtual void chunk_read(int layer, bool first, std::span<const float> queries, int num_heads) = 0;
  virtual void prompt_read(std::span<const FullKv> layers, int length, int end) = 0;
  // Positions [first, first + count) leave the ring.
  virtual void ring_left(std::span<const FullKv> layers, int first, int count) = 0;
  virtual void clear() = 0;

  // What a draft sees of view.layer by this access, one that was asked for.
  virtual void show(const KvAccess& access, KvView& view) const = 0;
  virtual std::size_t bytes() const = 0;
};

}  // namespace quantspec
