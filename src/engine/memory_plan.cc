#include "engine/memory_plan.h"

#include "base/system_memory.h"

namespace quantspec {

WeightRead planes_kept(DraftWeights draft_weights) {
  switch (draft_weights) {
    case DraftWeights::kUpper:
      return WeightRead::kUpper;
    case DraftWeights::kFull:
      return WeightRead::kFull;
    case DraftWeights::kAuto:
    case DraftWeights::kBoth:
      break;
  }
  return WeightRead::kBoth;
}

MemoryPlan plan_memory(const ModelConfig& config, const Backend& backend, const KvShape& shape,
                       std::size_t checkpoint_bytes, DraftWeights draft_weights, int context) {
  MemoryPlan plan;
  plan.weights_bytes = checkpoint_bytes;
  plan.draft_weights_bytes = Weights::draft_bytes_for(config, backend, planes_kept(draft_weights));
  plan.kv_bytes = KvCache::page_bytes_for(shape, context);
  plan.ring_bytes = KvCache::ring_bytes_for(shape, backend);
  plan.prefill_bytes = KvCache::scratch_bytes_for(shape, backend, context) +
                       Model::activation_bytes(config, context);
  plan.kv_fp16_bytes = shape.fp16_token_bytes() * context;
  return plan;
}

int largest_context(const ModelConfig& config, const Backend& backend, const KvShape& shape,
                    std::size_t checkpoint_bytes, DraftWeights draft_weights,
                    std::size_t available) {
  const auto fits = [&](int context) {
    return plan_memory(config, backend, shape, checkpoint_bytes, draft_weights, context).total() <=
           available;
  };
  int low = 0, high = kMaxContext;  // the answer lies in [low, high]
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::size_t checkpoint_bytes_of(const std::filesystem::path& model_dir) {
  std::size_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(model_dir, error)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size(error);
  }
  return bytes;
}

ModelReport report_model(const EngineOptions& options, std::span<const int> contexts) {
  const auto backend = make_backend({options.backend, options.num_threads});
  ModelReport report;
  report.config = load_config(options.model);
  const KvShape shape = kv_shape(report.config, options.page_size);
  const std::size_t checkpoint_bytes = checkpoint_bytes_of(options.model);
  report.page_size = shape.page_size;
  report.available_bytes = available_memory_bytes();
  report.largest_context = largest_context(report.config, *backend, shape, checkpoint_bytes,
                                           options.draft_weights, report.available_bytes);
  for (const int context : contexts) {
    report.plans.emplace_back(context, plan_memory(report.config, *backend, shape, checkpoint_bytes,
                                                   options.draft_weights, context));
  }
  return report;
}

}  // namespace quantspec
