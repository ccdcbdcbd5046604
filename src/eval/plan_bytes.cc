// What a draft step reads from memory.

#include <algorithm>

#include "eval/eval.h"

namespace quantspec {

namespace {

constexpr std::size_t kFullElement = 2;  // bytes of K and V in full precision

std::size_t linear_bytes(const Backend& backend, const Linear& linear, WeightRead read) {
  const TensorView& full = linear.full;
  if (read == WeightRead::kFull) {
    return static_cast<std::size_t>(full.rows) * full.cols * size_of(full.dtype);
  }
  const auto planes = backend.plane_bytes(full.rows, full.cols, linear.group);
  return read == WeightRead::kUpper ? planes.upper : planes.upper + planes.lower;
}

std::size_t layer_bytes(const Backend& backend, const LayerWeights& layer, WeightRead read) {
  std::size_t bytes = 0;
  for (const Linear* linear :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
    bytes += linear_bytes(backend, *linear, read);
  }
  return bytes;
}

std::size_t full_tokens_bytes(const KvShape& shape, int tokens) {
  return 2 * kFullElement * shape.num_kv_heads * shape.head_dim * tokens;
}

// K and V of one layer.
std::size_t kv_bytes(const KvShape& shape, const KvAccess& access, int context) {
  if (access.read == KvRead::kFull) return full_tokens_bytes(shape, context);
  const int first_full = first_full_position(context, shape.page_size);
  const int pages = first_full / shape.page_size;
  const std::size_t ring = full_tokens_bytes(shape, context - first_full);
  const std::size_t page =
      shape.num_kv_heads *
      (shape.upper_unit_bytes() + (access.read == KvRead::kBoth ? shape.lower_unit_bytes() : 0));
  // Streaming's budget includes the ring; the others' tokens come beside it.
  const int gathered = access.tokens == KvTokens::kStreaming
                           ? std::max(0, access.budget - (context - first_full))
                           : access.budget;
  switch (access.tokens) {
    case KvTokens::kAll:
      return ring + pages * page;
    case KvTokens::kNone:
      return ring;
    case KvTokens::kByMass:
      return ring + std::min(pages, std::max(1, access.budget / shape.page_size)) * page;
    case KvTokens::kByBound:  // and the scale and offset of every page's key channels
      return ring + std::min(pages, std::max(1, access.budget / shape.page_size)) * page +
             4 * static_cast<std::size_t>(shape.num_kv_heads) * shape.head_dim * pages;
    case KvTokens::kStreaming:
    case KvTokens::kSnap:
    case KvTokens::kRetrieval:
      break;
  }
  return ring + full_tokens_bytes(shape, std::min(gathered, first_full));
}

}  // namespace

std::size_t draft_step_bytes(const Model& model, const KvShape& shape, const Plan& plan,
                             int context) {
  std::size_t bytes = linear_bytes(model.backend(), model.weights().head(), plan.head);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    if (!layer.run) continue;
    bytes += layer_bytes(model.backend(), model.weights().layers()[i], layer.weights) +
             kv_bytes(shape, layer.kv, context);
  }
  return bytes;
}

}  // namespace quantspec
