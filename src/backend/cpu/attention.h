// Decode attention of the CPU backend (Backend::attention): plans the work, hands it to threads and
// merges. The arithmetic is in attention-inl.h.
//
// A unit of work is (sequence, kv head, split): eight pages at absolute page boundaries, or 1024
// positions of the full-precision part. All query rows of the sequence and all heads of the group
// go through a unit together, so that K and V are read once. Splits are a function of the
// sequence's own position and partials are merged in their order: a row's bits do not depend on the
// rows beside it, on other sequences or on the number of threads.
//
// Thread-safety: one call at a time. Allocates only when a call is larger than all before it.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/kernels_attention.h"
#include "backend/params.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

namespace quantspec::cpu {

class DecodeAttention {
 public:
  // Keeps references to both.
  DecodeAttention(const AttentionKernels& kernels, ThreadPool& pool)
      : kernels_(kernels), pool_(pool) {}

  void run(const AttentionParams& params);

 private:
  // What the units of one sequence have in common.
  struct Plan {
    const SequenceRows* rows;
    int num_columns;
    int page_splits;
    int full_splits;
    std::int64_t first_unit;     // of kv head 0; kv heads x splits follow
    std::size_t first_partial;   // in floats
    std::size_t partial_stride;  // in floats, from split to split and from head to head

    int splits() const { return page_splits + full_splits; }
  };
  struct Unit {
    const Plan* plan;
    int kv_head;
    int split;
  };

  std::int64_t make_plans(const AttentionParams& params);
  Unit unit(std::int64_t index) const;
  Partial partial(const AttentionParams& params, const Unit& unit);
  PageUnit page_unit(const AttentionParams& params, const Unit& unit, int page) const;
  void attend(const AttentionParams& params, const Unit& unit, const Unit* following, int thread);
  void attend_pages(const AttentionParams& params, const Unit& unit, const Unit* following,
                    const Columns& columns);
  void attend_ring(const AttentionParams& params, const Unit& unit, const Columns& columns,
                   int* tokens);
  void merge(const AttentionParams& params, const Plan& plan, int kv_head);

  const AttentionKernels& kernels_;
  ThreadPool& pool_;
  std::vector<Plan> plans_;
  Buffer partials_;
  Buffer queries_;  // [threads, columns, head_dim]: a unit's queries, times the softmax scale
  Buffer tokens_;   // [threads, columns]
  int max_columns_ = 0;
};

}  // namespace quantspec::cpu
