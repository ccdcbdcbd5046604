#include "bench/prediction.h"

#include <algorithm>

namespace quantspec::bench {

namespace {

// Of `old` tokens, those of which a pass reads K and V; beside them it reads the ring, which has so
// many on average: what is left is not whole pages.
double tokens_read(const KvAccess& kv, double old, int page_size) {
  if (kv.tokens == KvTokens::kAll) return old;
  return kv.tokens_read(static_cast<int>(old), page_size);
}

}  // namespace

PassRead Predictor::read_of(const Plan& plan, int context) const {
  const double head_parameters = 1.0 * model.vocab_size * model.hidden_size;
  const double layer_parameters = (read_parameters(model) - head_parameters) / model.num_layers;
  const double ring =
      std::min<double>(context, uniform(WeightRead::kTarget, KvRead::kBoth).ring_tokens);
  const double old = context - ring;
  double layers = 0, parameters = head_parameters, bytes = parameters * weights.of(plan.head);
  double tokens = 0, kv = 0;
  for (const LayerPlan& layer : plan.layers) {
    if (!layer.run) continue;
    ++layers;
    parameters += layer_parameters;
    bytes += layer_parameters * weights.of(layer.weights);
    const double here = tokens_read(layer.kv, old, page_size);
    const KvRead read = layer.kv.gathers() ? KvRead::kFull : layer.kv.read;
    tokens += here;
    kv += here * uniform(layer.weights, read).kv_bytes;
    // Bounds: two fp16 numbers of every key channel of every page, of 2 G elements a channel.
    if (layer.kv.tokens == KvTokens::kByBound) kv += old * 4 / (2 * page_size);
  }
  PassRead read;
  read.weight_bytes = bytes / parameters;
  read.layers = layers / model.num_layers;
  read.ring_tokens = ring;
  read.kv_tokens = ring + (layers > 0 ? tokens / layers : 0);
  read.kv_bytes = tokens > 0 ? kv / tokens : 2;
  return read;
}

double Predictor::milliseconds(const Entry& entry, int context, const Plan* draft, int draft_len,
                               double acceptance) const {
  const PassRead target =
      entry.store == KvStore::kFull
          ? uniform(WeightRead::kTarget, KvRead::kFull)
          : read_of(Plan::target(model.num_layers, entry.full_layers()), context);
  const bool drafts = draft != nullptr && draft_len > 0;
  const bool by_passes = drafts && !draft->looks_up();
  RoundPrediction round =
      predict_round(machine, model, context, 1, by_passes ? read_of(*draft, context) : target,
                    target, drafts ? draft_len : 0, acceptance);
  if (!by_passes) round.draft_seconds = 0;
  return 1e3 * round.seconds_per_token();
}

}  // namespace quantspec::bench
