// Decode attention of the CPU backend (Backend::attention): plans the work, hands it to threads and
// merges. The arithmetic is in attention-inl.h.
//
// Ranks that share a context (params/context.h) attend to some units each, with the queries of all
// of them, give each other the partials, and merge those of their own heads as one rank does.
//
// What a sequence reads has three parts, in this order: pages, gathered positions, the ring. A unit
// of work is (sequence, kv head, split): some of the pages that the head reads, or some positions
// in full precision (splits.h). All query rows of the sequence and all heads of the group go
// through a unit together, so that K and V are read once. Splits are a function of the sequence's
// own position and page lists, and partials are merged in their order: a row's bits do not depend
// on the rows beside it, on other sequences or on the number of threads.
//
// Thread-safety: one call at a time. Allocates only when a call is larger than all before it.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/kernels_attention.h"
#include "backend/cpu/splits.h"
#include "backend/host/host.h"
#include "backend/params/attention.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

namespace quantspec::cpu {

class DecodeAttention {
 public:
  // Keeps references to both.
  DecodeAttention(const AttentionKernels& kernels, ThreadPool& pool, const ContextGroup& group = {})
      : kernels_(kernels), pool_(pool), group_(group) {}

  void run(const AttentionParams& params);

 private:
  // A part in full precision.
  struct FullPart {
    FullKv kv;
    int first;        // its first token lies in slot first mod capacity
    int tokens;       // that the last row sees
    int row_step;     // tokens that a row sees and the row before it does not
    int first_split;  // of the plan's
    SplitBorders borders;

    int tokens_of(int row, int num_rows) const { return tokens - row_step * (num_rows - 1 - row); }
  };
  // What the units of one sequence have in common.
  struct Plan {
    const SequenceRows* rows;
    int num_columns;
    int num_pages;  // that a kv head reads, from split 0 on
    SplitBorders page_borders;
    FullPart gathered;
    FullPart ring;
    int splits = 0;
    std::int64_t first_unit = 0;     // splits x kv heads follow, the last split first
    std::int64_t first_merge = 0;    // kv heads x merges() follow
    int merge_columns = 0;           // of a kv head, that are merged at a time
    std::size_t first_partial = 0;   // in floats
    std::size_t partial_stride = 0;  // in floats, from split to split and from head to head
    std::size_t first_sum = 0;       // in floats, of page_sums()
    std::size_t first_column = 0;    // of queries()

    int merges() const { return (num_columns + merge_columns - 1) / merge_columns; }
    int page_splits() const { return gathered.first_split; }
    // REQUIRES: split >= page_splits().
    const FullPart& full_part(int split) const {
      return split < ring.first_split ? gathered : ring;
    }
    std::size_t sum_stride() const { return (static_cast<std::size_t>(num_pages) + 15) / 16 * 16; }
  };
  struct Unit {
    const Plan* plan;
    int kv_head;
    int split;
  };

  Plan make_plan(const AttentionParams& params, const SequenceRows& rows) const;
  static void grow(Buffer& buffer, std::size_t bytes);
  void make_plans(const AttentionParams& params);
  // Of all heads that the cache has.
  AttentionParams gather_queries(const AttentionParams& params);
  int rank_of(const AttentionParams& params, const Unit& unit) const;
  void give_partials(const AttentionParams& params);
  // Calls f(giver, getter, unit) for all partials that ranks give each other, in one order.
  template <typename F>
  void for_given(const AttentionParams& params, const F& f) const;
  float* queries(const AttentionParams& params, const Plan& plan, int kv_head);
  void scale_queries(const AttentionParams& params);
  void attend_all(const AttentionParams& params);
  // heads: that are merged, whose rows `out` has.
  void merge_all(const AttentionParams& params, const KvHeads& heads);
  Unit unit(std::int64_t index) const;
  Partial partial(const AttentionParams& params, const Unit& unit);
  PageSums page_sums(const Plan& plan, int kv_head);
  PageUnit page_unit(const AttentionParams& params, const Unit& unit, int index) const;
  void attend(const AttentionParams& params, const Unit& unit, const Unit* following, int thread);
  void attend_pages(const AttentionParams& params, const Unit& unit, const Unit* following,
                    const Columns& columns);
  // 16 keys, `token` and on. REQUIRES: a multiple of 16.
  static const std::uint16_t* key_block(const AttentionParams& params, const FullPart& part,
                                        int kv_head, int token);
  void attend_full(const AttentionParams& params, const Unit& unit, const Unit* following,
                   const Columns& columns, int* tokens);
  void merge(const AttentionParams& params, const Plan& plan, const KvHeads& heads, int kv_head,
             int first_column);

  const AttentionKernels& kernels_;
  ThreadPool& pool_;
  const ContextGroup group_;
  std::vector<Plan> plans_;
  std::vector<IndexRange> units_;  // of each plan: kv heads, splits times
  std::int64_t merges_ = 0;        // of all plans
  Buffer partials_;
  Buffer page_sums_;    // of the plans that want page_mass: [kv heads, columns, 2, sum_stride]
  Buffer queries_;      // of each plan: [kv heads, columns, head_dim], times the softmax scale
  Buffer tokens_;       // [threads, columns]
  Buffer all_queries_;  // [rows, all heads, head_dim]
  Buffer given_, got_;  // partials, or queries: [ranks that share the context, as many]
  std::vector<std::size_t> floats_;  // [giver, getter]
  int max_columns_ = 0;
};

}  // namespace quantspec::cpu
