// The methods that QuantSpec is compared with, as far as they gather tokens: `streaming`, `snapkv`
// and `retrieval` (docs/bench.md). They plug into a KvCache, and only measurements bring them
// along.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "kv_cache/kv_cache.h"

namespace quantspec {

// With what a cache of these options needs to gather what its accesses want; without such accesses
// as they are. `backend` outlives the caches. Throws kInvalidRequest where a budget is too small
// for the method, or a share.
KvOptions with_rivals(KvOptions options, Backend& backend, const KvShape& shape);

// The most that they come to gather in a cache of so many tokens.
std::size_t rivals_bytes(const KvOptions& options, const KvOps& ops, const KvShape& shape,
                         int capacity);

}  // namespace quantspec
