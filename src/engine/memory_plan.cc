#include "engine/memory_plan.h"

#include "base/error.h"

namespace quantspec {

namespace {

// Bytes of the *.safetensors files of a folder.
std::size_t checkpoint_bytes_of(const std::filesystem::path& model_dir) {
  std::size_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(model_dir, error)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size(error);
  }
  return bytes;
}

}  // namespace

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

void require_supported_context(int context) {
  if (context >= 1 && context <= kMaxContext) return;
  fail(ErrorKind::kInvalidRequest, "--ctx-size {}: supported are 1 to {} tokens (0: the model's)",
       context, kMaxContext);
}

MemoryPlanner::MemoryPlanner(const EngineOptions& options, const ModelConfig& config,
                             const Backend& backend)
    : config_(config),
      backend_(backend),
      shape_(kv_shape(config, options.page_size)),
      checkpoint_bytes_(checkpoint_bytes_of(options.model)),
      draft_weights_bytes_(
          options.draft_store.empty()
              ? Weights::draft_bytes_for(config, backend, planes_kept(options.draft_weights))
              : Weights::draft_bytes_for(DraftStore(options.draft_store), backend)),
      kv_store_(options.kv_store) {}

MemoryPlan MemoryPlanner::plan(int context) const {
  MemoryPlan plan;
  plan.weights_bytes = checkpoint_bytes_;
  plan.draft_weights_bytes = draft_weights_bytes_;
  plan.kv_bytes = KvCache::page_bytes_for(shape_, context, kv_store_);
  plan.ring_bytes = KvCache::ring_bytes_for(shape_, backend_, context, {kv_store_});
  plan.prefill_bytes = KvCache::scratch_bytes_for(shape_, backend_, context) +
                       Model::activation_bytes(config_, backend_, context);
  plan.kv_fp16_bytes = shape_.fp16_token_bytes() * context;
  return plan;
}

int MemoryPlanner::largest_context(std::size_t available) const {
  int low = 0, high = kMaxContext;  // the answer lies in [low, high]
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (plan(middle).total() <= available) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

ModelReport report_model(const EngineOptions& options, std::span<const int> contexts) {
  const auto backend = make_backend({options.backend, options.num_threads});
  ModelReport report;
  report.config = load_config(options.model);
  const Checkpoint readable(options.model);  // refuses what Engine::load would
  const MemoryPlanner planner(options, report.config, *backend);
  const KvShape shape = kv_shape(report.config, options.page_size);
  backend->require_supported(shape);
  report.page_size = shape.page_size;
  report.backend = backend->description();
  report.available_bytes = backend->available_bytes();
  report.largest_context = planner.largest_context(report.available_bytes);
  for (const int context : contexts) {
    require_supported_context(context);
    report.plans.emplace_back(context, planner.plan(context));
  }
  return report;
}

}  // namespace quantspec
