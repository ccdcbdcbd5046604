// Bytes that a pass reads from memory, scales included: what makes a draft cheap. The one place
// that counts them, for plans, memory and predictions alike. Activations are not counted. Pure;
// thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "model/plan.h"
#include "model/weights.h"

namespace quantspec {

// Of a matrix as the backend keeps it, padding included. kFull: its elements in the checkpoint.
std::size_t matrix_bytes(const WeightMemory& memory, const Linear& linear, WeightRead read);

// The mean over matrices of what weight_bytes() says of each, for a model that is not loaded.
WeightBytes mean_weight_bytes(std::span<const MatrixFormat> matrices,
                              int draft_group = kWeightGroup);

// K and V of one unit: a page and kv head of a layer. REQUIRES: read is not kFull; pages are
// quantized.
std::size_t unit_bytes(const KvShape& shape, KvRead read);

// K and V of one layer after so many tokens, the ring at 2 bytes an element included; for kByBound
// also the scales of the keys of all pages, by which it chooses. Of a shared context: a rank's
// part.
std::size_t kv_bytes(const KvShape& shape, const KvAccess& access, int context);

// All that a pass of one token reads after so many: the matrices of the layers that run, the head,
// and their K and V. REQUIRES: the plan is one for these weights.
std::size_t pass_bytes(const Weights& weights, const WeightMemory& memory, const KvShape& shape,
                       const Plan& plan, int context);

// Leaves out plans that read what one before them does: of codes of 4 bits, 8 bits are no more.
// REQUIRES: plans with the same KV read the same matrices, one no less of any than another.
std::vector<Plan> distinct_plans(std::span<const Plan> plans, const Weights& weights,
                                 const WeightMemory& memory, const KvShape& shape);

// K and V that passes of a plan read: pass_bytes without the weights. Quick to ask round by round,
// since it is counted once for all layers that see the cache alike.
class PlanKvBytes {
 public:
  PlanKvBytes(const KvShape& shape, KvStore store, const Plan& plan);
  double after(int context) const;

 private:
  KvShape shape_;
  std::vector<std::pair<KvAccess, int>> accesses_;  // and how many layers have them
};

}  // namespace quantspec
