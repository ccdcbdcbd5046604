// The draft's own KV cache in one of the methods that QuantSpec is compared with: some tokens' K
// (after RoPE, at their true positions) and V in full precision, per layer and kv head. What is
// gathered after a prompt, beside the ring, which every pass sees:
//
//   kStreaming  the first 16 tokens and the latest ones: with the ring, at least `budget` tokens
//   kSnap       per kv head, the `budget` - 32 tokens of the greatest score: the attention of the
//               prompt's last 32 queries, summed over them and the group's heads, smoothed over 5
//   kRetrieval  per kv head, the first segment of 8 tokens and the budget / 8 - 1 others whose mean
//               key has the greatest product with the last query (summed over the group's heads)
//
// Tokens that leave the ring later are added: in kStreaming in place of the oldest, in kRetrieval
// in place of the lowest-scored; in kSnap the cache grows. docs/bench.md says where these differ
// from the published code. Private to rivals/. Not thread-safe.
#pragma once

#include <span>
#include <vector>

#include "backend/kv_borders.h"
#include "backend/kv_ops.h"
#include "backend/params/kv.h"
#include "kv_cache/kv_cache.h"

namespace quantspec {

class GatheredKv {
 public:
  // REQUIRES: access.gathers(). Throws kInvalidRequest where the budget is too small for the
  // method.
  GatheredKv(KvOps& ops, const KvBorders& borders, const KvShape& shape, const KvAccess& access);
  GatheredKv(const GatheredKv& other);
  GatheredKv& operator=(const GatheredKv&) = delete;
  GatheredKv(GatheredKv&&) = default;
  GatheredKv& operator=(GatheredKv&&) = default;

  const KvAccess& access() const { return access_; }
  // Rows at the prompt's end whose queries choose(). 0: it needs none.
  int query_rows() const;

  // After a prompt of `length` tokens went through `layer`: gathers from the positions [0, end)
  // that are not in the ring. queries: [query_rows() or fewer, num_heads, head_dim], the last rows.
  void choose(int layer, FullKv prompt, int length, int end, std::span<const float> queries,
              int num_heads);
  // Positions [first, first + count) leave the ring of `layer`.
  void add(int layer, FullKv ring, int first, int count);
  void clear();

  FullKv full(int layer) const { return layers_[layer].full(); }
  int count(int layer) const { return layers_[layer].count; }
  std::size_t bytes() const;
  // The most that it takes in a cache of so many tokens: kSnap grows, the others do not.
  static std::size_t most_bytes(const KvShape& shape, const KvOps& ops, const KvAccess& access,
                                int capacity);

 private:
  struct Layer {
    mutable Buffer data;
    int capacity = 0;  // slots
    int count = 0;     // in use
    int next = 0;      // kRetrieval: slots [0, next) are not yet replaced
    FullKv full() const { return {data.data(), capacity}; }
  };
  // Slots that are in use when there is nothing more to gather; of kSnap, before it grows.
  int full_slots() const { return access_.tokens_gathered(shape_.page_size); }
  // Makes room for so many slots, keeping those in use.
  void grow(Layer& layer, int slots);
  void add_run(Layer& layer, FullKv source, int first, int count, int slot);
  void add_to_window(Layer& layer, FullKv ring, int first, int count);
  void replace_worst(Layer& layer, FullKv ring, int first, int count);

  KvOps* ops_;
  const KvBorders* borders_;
  KvShape shape_;
  KvAccess access_;
  std::vector<Layer> layers_;
  std::vector<int> positions_;  // [num_kv_heads, n] of add_run
};

}  // namespace quantspec
