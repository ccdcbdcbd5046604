#include "bench/memory.h"

#include "speculative/speculative.h"

namespace quantspec::bench {

namespace {

// The planes of a matrix that some plan reads.
struct PlanesRead {
  bool upper = false;
  bool lower = false;

  void add(WeightRead read) {
    upper |= read != WeightRead::kTarget;
    lower |= read == WeightRead::kBoth;
  }
  std::size_t bytes(const Backend& backend, const Linear& linear) const {
    // Of codes drafts read the target's own.
    if (!upper || !linear.target.format.dense()) return 0;
    return matrix_bytes(backend, linear, lower ? WeightRead::kBoth : WeightRead::kUpper);
  }
};

}  // namespace

std::size_t prefill_bytes(Engine& engine, int capacity, int sequences) {
  const Model& model = engine.model();
  const KvShape& shape = engine.pool().shape();
  const int pages = (capacity + shape.page_size - 1) / shape.page_size;
  return Model::prefill_bytes(model.config(), model.backend(), shape, capacity) +
         Model::pass_bytes(model.config(), model.backend(), shape, sequences, pages);
}

std::size_t decoder_bytes(Engine& engine, int sequences) {
  return Decoder::bytes_for(engine.model().config(), engine.model().backend(), sequences);
}

std::size_t available_bytes(Engine& engine) {
  const Backend& backend = engine.model().backend();
  const int sharing = backend.is_apart_from_host() ? 1 : engine.ranks();
  return (backend.available_bytes() + backend.taken_bytes()) / sharing;
}

MemoryPlan of_all_ranks(MemoryPlan each, const Engine& engine) {
  for (std::size_t* bytes : {&each.weights_bytes, &each.draft_weights_bytes, &each.ring_bytes,
                             &each.kv_bytes, &each.prefill_bytes, &each.kv_fp16_bytes}) {
    *bytes *= engine.ranks();
  }
  return each;
}

std::size_t draft_weights_bytes(const Model& model, const std::vector<Plan>& plans) {
  const std::size_t layers = model.config().num_layers;
  std::vector<PlanesRead> reads(layers + 1);  // the head's is the last
  for (const Plan& plan : plans) {
    if (plan.looks_up()) continue;
    reads[layers].add(plan.head);
    for (std::size_t i = 0; i < layers; ++i) {
      if (plan.layers[i].run) reads[i].add(plan.layers[i].weights);
    }
  }
  const std::vector<NamedLinear> matrices = model.weights().matrices();
  const std::size_t matrices_per_layer = (matrices.size() - 1) / layers;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    bytes += reads[i / matrices_per_layer].bytes(model.backend(), *matrices[i].linear);
  }
  return bytes;
}

}  // namespace quantspec::bench
