#include "model/pass_bytes.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr std::size_t kFullElement = 2;  // bytes of K and V in full precision
constexpr std::size_t kScaleBytes = 4;   // a scale and an offset, fp16

std::size_t layer_bytes(const WeightMemory& memory, const LayerWeights& layer, WeightRead read) {
  std::size_t bytes = 0;
  for (const Linear* linear :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
    bytes += matrix_bytes(memory, *linear, read);
  }
  return bytes;
}

std::size_t full_tokens_bytes(const KvShape& shape, int tokens) {
  return 2 * kFullElement * shape.num_kv_heads * shape.head_dim * tokens;
}

}  // namespace

std::size_t matrix_bytes(const WeightMemory& memory, const Linear& linear, WeightRead read) {
  const Matrix& matrix = matrix_of(linear, read);
  if (matrix.format.dense()) {
    return static_cast<std::size_t>(matrix.rows) * matrix.cols * size_of(matrix.format.dtype);
  }
  const auto planes = memory.plane_bytes(matrix.rows, matrix.cols, matrix.format);
  return read == WeightRead::kUpper ? planes.upper : planes.upper + planes.lower;
}

WeightBytes mean_weight_bytes(std::span<const MatrixFormat> matrices, int draft_group) {
  double weights = 0;
  for (const MatrixFormat& matrix : matrices) weights += matrix.weights;
  WeightBytes mean;
  for (const MatrixFormat& matrix : matrices) {
    const WeightBytes bytes = weight_bytes(matrix.layout, draft_group);
    for (double WeightBytes::*part : {&WeightBytes::upper, &WeightBytes::both, &WeightBytes::target,
                                      &WeightBytes::kept_for_drafts}) {
      mean.*part += bytes.*part * matrix.weights / weights;
    }
  }
  return mean;
}

std::size_t unit_bytes(const KvShape& shape, KvRead read) {
  check(read != KvRead::kFull, "pages are quantized");
  return shape.upper_unit_bytes() + (read == KvRead::kBoth ? shape.lower_unit_bytes() : 0);
}

std::size_t kv_bytes(const KvShape& shape, const KvAccess& access, int context) {
  if (access.read == KvRead::kFull) return full_tokens_bytes(shape, context);
  const int first_full = first_full_position(context, shape.page_size);
  const int read = access.tokens_read(first_full, shape.page_size);
  const std::size_t ring = full_tokens_bytes(shape, context - first_full);
  if (access.gathers()) return ring + full_tokens_bytes(shape, read);
  const std::size_t all_units = shape.num_kv_heads * (read / shape.page_size);
  const std::size_t units = (all_units + shape.context_ranks - 1) / shape.context_ranks;
  std::size_t bytes = ring + units * unit_bytes(shape, access.read);
  if (access.tokens == KvTokens::kByBound) {
    bytes += kScaleBytes * shape.num_kv_heads * shape.head_dim * (first_full / shape.page_size);
  }
  return bytes;
}

std::size_t pass_bytes(const Weights& weights, const WeightMemory& memory, const KvShape& shape,
                       const Plan& plan, int context) {
  check(plan.layers.size() == weights.layers().size(), "a plan for these weights");
  std::size_t bytes = matrix_bytes(memory, weights.head(), plan.head);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    if (!layer.run) continue;
    bytes += layer_bytes(memory, weights.layers()[i], layer.weights) +
             kv_bytes(shape, layer.kv, context);
  }
  return bytes;
}

std::vector<Plan> distinct_plans(std::span<const Plan> plans, const Weights& weights,
                                 const WeightMemory& memory, const KvShape& shape) {
  std::vector<Plan> kept;
  const auto bytes = [&](const Plan& plan) { return pass_bytes(weights, memory, shape, plan, 0); };
  const auto same_kv = [](const LayerPlan& a, const LayerPlan& b) { return a.kv == b.kv; };
  for (const Plan& plan : plans) {
    const auto alike = [&](const Plan& other) {
      return std::ranges::equal(plan.layers, other.layers, same_kv) && bytes(plan) == bytes(other);
    };
    if (std::ranges::none_of(kept, alike)) kept.push_back(plan);
  }
  return kept;
}

PlanKvBytes::PlanKvBytes(const KvShape& shape, KvStore store, const Plan& plan) : shape_(shape) {
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.run) continue;
    const KvAccess access = store == KvStore::kFull ? KvAccess{KvRead::kFull} : layer.kv;
    const auto alike =
        std::ranges::find(accesses_, access, &decltype(accesses_)::value_type::first);
    if (alike == accesses_.end()) {
      accesses_.emplace_back(access, 1);
    } else {
      ++alike->second;
    }
  }
}

double PlanKvBytes::after(int context) const {
  double bytes = 0;
  for (const auto& [access, layers] : accesses_) {
    bytes += layers * static_cast<double>(kv_bytes(shape_, access, context));
  }
  return bytes;
}

}  // namespace quantspec
