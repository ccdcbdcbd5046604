#include "eval/memory.h"

#include <algorithm>

#include "base/error.h"
#include "base/fields.h"
#include "comm/comm.h"
#include "eval/forced_pass.h"
#include "rivals/rivals.h"
#include "speculative/speculative.h"

namespace quantspec {

namespace {

// Of a position that is compared: logits, probabilities, their logarithms.
std::size_t distribution_bytes(const EvalModel& model) {
  return model.model.config().vocab_size * (sizeof(float) + 2 * sizeof(double));
}

}  // namespace

KvOptions kv_options(const Variant& variant) {
  KvOptions options = kv_options(std::vector{variant.plan});
  options.store = variant.store;
  options.chunk = variant.chunk;
  return options;
}

std::size_t cache_bytes(const EvalModel& model, int capacity, const KvOptions& options) {
  const KvShape& shape = model.pool.shape();
  const Backend& backend = model.model.backend();
  return KvCache::page_bytes_for(shape, capacity, options.store) +
         KvCache::ring_bytes_for(shape, backend, capacity, options) +
         rivals_bytes(options, backend, shape, capacity);
}

std::size_t prefill_bytes(const EvalModel& model, int capacity, int chunk, int sequences) {
  const ModelConfig& config = model.model.config();
  const Backend& backend = model.model.backend();
  const KvShape& shape = model.pool.shape();
  const int pages = (capacity + shape.page_size - 1) / shape.page_size;
  return Model::prefill_bytes(config, backend, shape, capacity, chunk) +
         Model::pass_bytes(config, backend, shape, sequences, pages) +
         Decoder::bytes_for(config, backend, sequences);
}

std::size_t variants_bytes(const EvalModel& model, const std::vector<Variant>& variants,
                           int capacity) {
  std::size_t bytes = kMaxForcedRows * distribution_bytes(model);
  for (const Variant& variant : variants) {
    bytes += cache_bytes(model, capacity, kv_options(variant));
  }
  return bytes;
}

std::size_t drafts_bytes(const EvalModel& model, const std::vector<Plan>& plans, int capacity) {
  return cache_bytes(model, capacity, kv_options(plans)) +
         (plans.size() + 1) * distribution_bytes(model);
}

void require_memory(const EvalModel& model, std::size_t bytes, int context) {
  const Backend& backend = model.model.backend();
  const int sharing =
      model.ranks == nullptr || backend.is_apart_from_host() ? 1 : model.ranks->num_here();
  // All decide alike, by the least that one has and the most that one needs: memory comes and goes
  // while they ask for it, and shares differ a little.
  const Agreement ranks(model.ranks);
  const std::size_t available = ranks.least(backend.available_bytes() / sharing);
  bytes = ~ranks.least(~bytes);
  if (bytes <= available) return;
  fail(ErrorKind::kOutOfMemory,
       "{} {}: the caches that are compared need {:.0f} MB and {:.0f} MB are available; a shorter "
       "context needs less",
       field::kContext, context, bytes / 1e6, available / 1e6);
}

void require_memory(const EvalModel& one, std::size_t bytes_of_one, const EvalModel& other,
                    std::size_t bytes_of_other, int context) {
  const bool in_one_memory =
      one.model.backend().is_apart_from_host() == other.model.backend().is_apart_from_host();
  require_memory(one, bytes_of_one + (in_one_memory ? bytes_of_other : 0), context);
  if (!in_one_memory) require_memory(other, bytes_of_other, context);
}

}  // namespace quantspec
